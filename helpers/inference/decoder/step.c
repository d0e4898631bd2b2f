/* One step of the decoder: one new token of each of B sequences, through the rows of a table.

   A row is a function with its sizes and weights. Each sequence has a frame: all numbers that pass
   from row to row, at offsets that the rows name. REAL is float or double. HEAD is the width of an
   attention head. Matrices are in strips of N columns, (strips, 1 + in, N): the bias, then a line
   for each input; the last strip is filled with zeros. So a product reads a matrix once, from its
   first number to its last, and each number serves all sequences. */

#include <math.h>
#include <string.h>

#ifdef __AVX512F__
#define VECTOR 64 /* bytes */
#else
#define VECTOR 32
#endif
#define LANES ((long)(VECTOR / sizeof(REAL)))
#define N (2 * LANES)

typedef REAL vector __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias));

struct step {
    long sequences, frame, slots, vocab, done; /* frame: numbers; slots: of the cache, a sequence */
    const long *tokens, *places;               /* of each sequence: the new token, and its place */
    REAL **kept;                               /* the cache's tensors, block by block */
    REAL *frames, *scratch;
};

struct row {
    void (*run)(const struct row *, const struct step *, REAL *frame, long sequence);
    long x, y, z, v, kept; /* offsets in a frame; the row's first tensor in the cache */
    long size[4];
    const REAL *weights[2];
    double epsilon;
};

long strip(void) { return N; }

/* exp(x), by powers of 2 and the series to x^13: loops over it become vectors. */
static inline REAL power(REAL x)
{
    const REAL most = sizeof(REAL) == 4 ? 88 : 709, least = sizeof(REAL) == 4 ? -87 : -708;
    x = x > most ? most : x;
    x = x < least ? least : x; /* not a number stays so */
    REAL n = x * (REAL)1.4426950408889634;
    n = sizeof(REAL) == 4 ? (REAL)rintf((float)n) : (REAL)rint((double)n);
    REAL r = x - n * (REAL)0.693145751953125 - n * (REAL)1.42860682030941723212e-6;
    REAL sum = 1;
    for (int k = 13; k > 0; k--) sum = 1 + sum * r * (1 / (REAL)k);
    if (sizeof(REAL) == 4) {
        int bits = ((int)n + 127) << 23;
        float two;
        memcpy(&two, &bits, sizeof two);
        return sum * (REAL)two;
    }
    long bits = ((long)n + 1023) << 52;
    double two;
    memcpy(&two, &bits, sizeof two);
    return sum * (REAL)two;
}

static inline REAL silu(REAL x) { return x / (1 + power(-x)); }

/* log(1 + exp(x)). With t = exp(-|x|), log(1 + t) is the series of 2 artanh(t / (2 + t)). */
static inline REAL softplus(REAL x)
{
    REAL t = power(x > 0 ? -x : x), s = t / (2 + t), sum = 0;
    for (int k = 29; k > 0; k -= 2) sum = sum * s * s + 1 / (REAL)k;
    return (x > 0 ? x : 0) + 2 * s * sum;
}

/* A strip times up to 8 frames: y = x w, or += if `add`. The sums stay in registers. */
static inline __attribute__((always_inline)) void
strip_of(const REAL *w, long in, const REAL *x, REAL *y, long frame, long add, const int rows)
{
    vector sum[8][2];
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) {
            sum[r][h] = *(const vector *)(w + h * LANES);
            if (add) sum[r][h] += *(vector *)(y + r * frame + h * LANES);
        }
    for (long i = 0; i < in; i++) {
        w += N;
        vector left = *(const vector *)w, right = *(const vector *)(w + LANES);
        for (int r = 0; r < rows; r++) {
            sum[r][0] += x[r * frame + i] * left;
            sum[r][1] += x[r * frame + i] * right;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) *(vector *)(y + r * frame + h * LANES) = sum[r][h];
}

/* A linear layer of all sequences, with the first. size: inputs, outputs, whether to add to y. */
void product(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const long in = r->size[0], out = r->size[1], add = r->size[2], next = s->frame;
    const REAL *w = r->weights[0];
    for (long first = 0; first < out && !sequence; first += N, w += (in + 1) * N)
        for (long left = s->sequences, more; left > 0; left -= more) {
            REAL *x = frame + (s->sequences - left) * next, *y = x + r->y + first;
            x += r->x;
            more = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            if (more == 8) strip_of(w, in, x, y, next, add, 8);
            else if (more == 4) strip_of(w, in, x, y, next, add, 4);
            else if (more == 2) strip_of(w, in, x, y, next, add, 2);
            else strip_of(w, in, x, y, next, add, 1);
        }
}

/* Look up the token's vector. size: its width. */
void embed(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const long width = r->size[0];
    memcpy(frame + r->y, r->weights[0] + s->tokens[sequence] * width, width * sizeof(REAL));
}

/* Divide each group by the root of its squares' sum and epsilon. size: width of a group, groups. */
void norm(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const long width = r->size[0];
    REAL *x = frame + r->x, *y = frame + r->y;
    for (long g = 0; g < r->size[1]; g++, x += width, y += width) {
        REAL sum = 0;
        for (long i = 0; i < width; i++) sum += x[i] * x[i];
        REAL scale = 1 / (REAL)sqrt((double)sum + r->epsilon);
        for (long i = 0; i < width; i++) y[i] = x[i] * scale;
    }
}

/* y = silu(x) z. size: the width. */
void gate(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const REAL *x = frame + r->x, *z = frame + r->z;
    REAL *y = frame + r->y;
    for (long i = 0; i < r->size[0]; i++) y[i] = silu(x[i]) * z[i];
}

/* softmax(q k^T / sqrt(d)) v of one query over `keys` rows. */
static void read_keys(const REAL *restrict q, const REAL *restrict k, const REAL *restrict v,
                      long keys, REAL *restrict scores, REAL *restrict y)
{
    REAL most = -INFINITY, sum = 0, read[HEAD] = {0};
    const REAL scale = 1 / (REAL)sqrt((double)HEAD);
    for (long s = 0; s < keys; s++, k += HEAD) {
        REAL dot = 0;
        for (long i = 0; i < HEAD; i++) dot += q[i] * k[i];
        scores[s] = dot * scale;
    }
    for (long s = 0; s < keys; s++) most = scores[s] > most ? scores[s] : most;
    for (long s = 0; s < keys; s++) scores[s] = power(scores[s] - most);
    for (long s = 0; s < keys; s++) sum += scores[s];
    for (long s = 0; s < keys; s++, v += HEAD)
        for (long i = 0; i < HEAD; i++) read[i] += scores[s] * v[i];
    for (long i = 0; i < HEAD; i++) y[i] = read[i] / sum;
}

/* Attention. size: H, K, rotated pairs of a head. x: queries, keys, values. weights: cosines and
   sines of each place. kept: keys, values, (B, K, slots, d) each. */
void attend(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const long H = r->size[0], K = r->size[1], pairs = r->size[2], slot = s->places[sequence];
    const REAL *cosine = r->weights[0] + slot * pairs, *sine = r->weights[1] + slot * pairs;
    REAL *q = frame + r->x, *new = q + H * HEAD, **kept = s->kept + r->kept;
    for (REAL *x = q; x < new + K * HEAD; x += HEAD)
        for (long i = 0; i < pairs; i++) {
            REAL a = x[i], b = x[i + pairs];
            x[i] = a * cosine[i] - b * sine[i];
            x[i + pairs] = b * cosine[i] + a * sine[i];
        }
    for (long h = 0; h < K; h++) {
        const long rows = (sequence * K + h) * s->slots * HEAD;
        REAL *k = kept[0] + rows, *v = kept[1] + rows;
        memcpy(k + slot * HEAD, new + h * HEAD, HEAD * sizeof(REAL));
        memcpy(v + slot * HEAD, new + (K + h) * HEAD, HEAD * sizeof(REAL));
        for (long g = h * (H / K); g < (h + 1) * (H / K); g++)
            read_keys(q + g * HEAD, k, v, slot + 1, s->scratch, frame + r->y + g * HEAD);
    }
}

/* A causal convolution, then silu. size: channels, k. weights: the bias, then the k taps.
   kept: the k-1 inputs before, (B, k-1, channels). */
void convolve(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const long width = r->size[0], k = r->size[1];
    const REAL *w = r->weights[0], *x = frame + r->x;
    REAL *y = frame + r->y, *before = s->kept[r->kept] + sequence * (k - 1) * width;
    memcpy(y, w, width * sizeof(REAL));
    for (long tap = 0; tap < k; tap++) {
        const REAL *in = tap < k - 1 ? before + tap * width : x;
        w += width;
        for (long i = 0; i < width; i++) y[i] += w[i] * in[i];
    }
    for (long i = 0; i < width; i++) y[i] = silu(y[i]);
    if (k > 1) {
        memmove(before, before + width, (k - 2) * width * sizeof(REAL));
        memcpy(before + (k - 2) * width, x, width * sizeof(REAL));
    }
}

/* One step of a state space model: h = exp(delta A) h + delta x B, y = C h + D x. z: delta before
   softplus, (H,). v: B, then C, (G, S) each. size: H, P, S numbers of state, G. weights: A (H, S),
   D. kept: (B, H, P, S). Mamba's channels are heads with P = 1. */
void scan(const struct row *r, const struct step *s, REAL *frame, long sequence)
{
    const long H = r->size[0], P = r->size[1], S = r->size[2], G = r->size[3];
    const REAL *x = frame + r->x, *B = frame + r->v, *A = r->weights[0];
    REAL *y = frame + r->y, *delta = frame + r->z, *restrict decay = s->scratch;
    REAL *restrict state = s->kept[r->kept] + sequence * H * P * S;
    for (long h = 0; h < H; h++) delta[h] = softplus(delta[h]);
    for (long h = 0; h < H; h++, A += S) {
        const REAL *b = B + h / (H / G) * S, *c = b + G * S;
        for (long n = 0; n < S; n++) decay[n] = power(delta[h] * A[n]);
        for (long p = 0; p < P; p++, x++, y++, state += S) {
            const REAL in = delta[h] * *x;
            REAL sum = r->weights[1][h] * *x;
            for (long n = 0; n < S; n++) {
                state[n] = decay[n] * state[n] + in * b[n];
                sum += state[n] * c[n];
            }
            *y = sum;
        }
    }
}

/* Sets `done`, unless a token is not in the vocabulary: then nothing is changed. */
void step(const struct row *rows, long count, struct step *s)
{
    for (long b = 0; b < s->sequences; b++)
        if (s->tokens[b] < 0 || s->tokens[b] >= s->vocab) return;
    for (const struct row *r = rows; r < rows + count; r++)
        for (long b = 0; b < s->sequences; b++) r->run(r, s, s->frames + b * s->frame, b);
    s->done = 1;
}
