/* One step of the decoder: one new token of each of B sequences, through all blocks.

   Letters as in compiled.py. REAL is float or double. Matrices are in strips of N columns:
   (strips, in, N), the last strip filled with zeros. So a product reads a matrix once, from its
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

struct shape {
    long layers, sequences, width, heads, kv_heads, head_width, inner, vocab;
    double epsilon; /* D times the norm's */
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

/* A strip times up to 8 rows: y (rows, N) of x (rows, in). The sums stay in registers. */
#define STRIP(ROWS)                                                                         \
    static inline void strip_##ROWS(const REAL *w, long in, const REAL *x, long x_next,     \
                                    REAL *y, long y_next, int add)                          \
    {                                                                                       \
        vector sum[ROWS][2];                                                                \
        for (int r = 0; r < ROWS; r++)                                                      \
            for (int h = 0; h < 2; h++)                                                     \
                sum[r][h] = add ? *(vector *)(y + r * y_next + h * LANES) : (vector){0};    \
        for (long i = 0; i < in; i++, w += N) {                                             \
            vector left = *(const vector *)w, right = *(const vector *)(w + LANES);         \
            for (int r = 0; r < ROWS; r++) {                                                \
                sum[r][0] += x[r * x_next + i] * left;                                      \
                sum[r][1] += x[r * x_next + i] * right;                                     \
            }                                                                               \
        }                                                                                   \
        for (int r = 0; r < ROWS; r++)                                                      \
            for (int h = 0; h < 2; h++) *(vector *)(y + r * y_next + h * LANES) = sum[r][h]; \
    }
STRIP(1)
STRIP(2)
STRIP(4)
STRIP(8)

/* y (rows, out) = x (rows, in) w, or += if `add`. A row of y has room for its last strip. */
static void product(const REAL *w, long in, long out, const REAL *x, long x_next, REAL *y,
                    long y_next, long rows, int add)
{
    for (long first = 0; first < out; first += N, w += in * N)
        for (long row = 0, more; row < rows; row += more) {
            const REAL *a = x + row * x_next;
            REAL *b = y + row * y_next + first;
            long left = rows - row;
            more = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            if (more == 8) strip_8(w, in, a, x_next, b, y_next, add);
            else if (more == 4) strip_4(w, in, a, x_next, b, y_next, add);
            else if (more == 2) strip_2(w, in, a, x_next, b, y_next, add);
            else strip_1(w, in, a, x_next, b, y_next, add);
        }
}

/* Divide a row by the root of its squares' sum and epsilon. */
static void norm(const REAL *x, REAL *y, long width, double epsilon)
{
    REAL sum = 0;
    for (long i = 0; i < width; i++) sum += x[i] * x[i];
    REAL scale = 1 / (REAL)sqrt((double)sum + epsilon);
    for (long i = 0; i < width; i++) y[i] = x[i] * scale;
}

/* Rotate pairs of neighbours by complex numbers (cosine, sine). */
static void rotate(REAL *x, const REAL *angles, long d)
{
    for (long i = 0; i < d; i += 2) {
        REAL a = x[i], b = x[i + 1];
        x[i] = a * angles[i] - b * angles[i + 1];
        x[i + 1] = a * angles[i + 1] + b * angles[i];
    }
}

/* Attention of one query: softmax(q k^T) v over `keys` rows. */
static void attend(const REAL *restrict q, const REAL *restrict k, const REAL *restrict v,
                   long keys, REAL *restrict scores, REAL *restrict y)
{
    REAL most = -INFINITY, sum = 0, read[HEAD] = {0};
    for (long s = 0; s < keys; s++, k += HEAD) {
        REAL dot = 0;
        for (long i = 0; i < HEAD; i++) dot += q[i] * k[i];
        scores[s] = dot;
    }
    for (long s = 0; s < keys; s++) most = scores[s] > most ? scores[s] : most;
    for (long s = 0; s < keys; s++) scores[s] = power(scores[s] - most);
    for (long s = 0; s < keys; s++) sum += scores[s];
    for (long s = 0; s < keys; s++, v += HEAD)
        for (long i = 0; i < HEAD; i++) read[i] += scores[s] * v[i];
    for (long i = 0; i < HEAD; i++) y[i] = read[i] / sum;
}

/* places: each sequence's slot for the new token; it sees the slots up to this one. matrices: qkv,
   out, gate and up, down of each block. rows: (B, K, slots, d), keys and values of each block. */
void step(const struct shape *c, const long *tokens, const long *places, long slots,
          const REAL *angles, const REAL *embedding, const REAL **matrices, const REAL *head,
          REAL **rows, REAL *work, REAL *logits)
{
    const long B = c->sequences, D = c->width, d = c->head_width, F = c->inner;
    const long H = c->heads, K = c->kv_heads, heads = H + 2 * K;
    const long hidden_next = D + N, qkv_next = heads * d + N, inner_next = 2 * F + N;
    REAL *hidden = work, *normed = hidden + B * hidden_next, *attended = normed + B * hidden_next;
    REAL *qkv = attended + B * hidden_next, *inner = qkv + B * qkv_next;
    REAL *scores = inner + B * inner_next;
    for (long b = 0; b < B; b++)
        memcpy(hidden + b * hidden_next, embedding + tokens[b] * D, D * sizeof(REAL));
    for (long layer = 0; layer < c->layers; layer++) {
        const REAL **w = matrices + 4 * layer;
        for (long b = 0; b < B; b++)
            norm(hidden + b * hidden_next, normed + b * hidden_next, D, c->epsilon);
        product(w[0], D, heads * d, normed, hidden_next, qkv, qkv_next, B, 0);
        for (long b = 0; b < B; b++) {
            const long slot = places[b];
            REAL *q = qkv + b * qkv_next, *new = q + H * d; /* K keys, then K values */
            for (long h = 0; h < H + K; h++) rotate(q + h * d, angles + slot * d, d);
            for (long h = 0; h < K; h++) {
                REAL *k = rows[2 * layer] + (b * K + h) * slots * d;
                REAL *v = rows[2 * layer + 1] + (b * K + h) * slots * d;
                memcpy(k + slot * d, new + h * d, d * sizeof(REAL));
                memcpy(v + slot * d, new + (K + h) * d, d * sizeof(REAL));
                for (long g = h * (H / K); g < (h + 1) * (H / K); g++)
                    attend(q + g * d, k, v, slot + 1, scores, attended + b * hidden_next + g * d);
            }
        }
        product(w[1], H * d, D, attended, hidden_next, hidden, hidden_next, B, 1);
        for (long b = 0; b < B; b++)
            norm(hidden + b * hidden_next, normed + b * hidden_next, D, c->epsilon);
        product(w[2], D, 2 * F, normed, hidden_next, inner, inner_next, B, 0);
        for (long b = 0; b < B; b++) {
            REAL *gate = inner + b * inner_next, *up = gate + F;
            for (long i = 0; i < F; i++) gate[i] = gate[i] / (1 + power(-gate[i])) * up[i];
        }
        product(w[3], F, D, inner, inner_next, hidden, hidden_next, B, 1);
    }
    for (long b = 0; b < B; b++)
        norm(hidden + b * hidden_next, normed + b * hidden_next, D, c->epsilon);
    /* The last strip may be wider than the logits' rows: compute into `inner` strip by strip. */
    for (long first = 0; first < c->vocab; first += N) {
        const long columns = c->vocab - first < N ? c->vocab - first : N;
        product(head + first * D, D, N, normed, hidden_next, qkv, N, B, 0);
        for (long b = 0; b < B; b++)
            memcpy(logits + b * c->vocab + first, qkv + b * N, columns * sizeof(REAL));
    }
}
