/* Quantise float32 in blocks, and restore it, in one pass over memory: the bytes of blocks.py.

   n     numbers in a row
   size  numbers in a block; the last block may be shorter

A block is read twice, the second time from the cache. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The step of a block. The bits of magnitudes compare as integers; those of a NaN are the largest. */
static float step_of(const float *x, long width, float most)
{
    const int32_t *bits = (const int32_t *)x;
    int32_t top = 0;
    for (long i = 0; i < width; i++) {
        int32_t magnitude = bits[i] & 0x7fffffff;
        top = magnitude > top ? magnitude : top;
    }
    float largest;
    memcpy(&largest, &top, sizeof largest);
    float step = largest / most;
    return step < 0x1p-126f ? 0x1p-126f : step; /* a NaN stays */
}

void encode8(long n, long size, const float *restrict x, float *restrict scales,
             int8_t *restrict codes)
{
    for (long start = 0; start < n; start += size) {
        long width = n - start < size ? n - start : size;
        float step = step_of(x + start, width, 127), inverse = 1 / step;
        *scales++ = step;
        for (long i = start; i < start + width; i++)
            codes[i] = (int8_t)(int32_t)rintf(x[i] * inverse);
    }
}

void decode8(long n, long size, float *restrict x, const float *restrict scales,
             const int8_t *restrict codes)
{
    for (long start = 0; start < n; start += size) {
        long stop = n - start < size ? n : start + size;
        float step = *scales++;
        for (long i = start; i < stop; i++)
            x[i] = codes[i] * step;
    }
}

void encode4(long n, long size, const float *restrict x, float *restrict scales,
             int8_t *restrict codes)
{
    for (long start = 0; start < n; start += size, codes += size / 2) {
        long width = n - start < size ? n - start : size, half = (width + 1) / 2;
        const float *low = x + start, *high = low + half;
        float step = step_of(low, width, 7), inverse = 1 / step;
        *scales++ = step;
        for (long i = 0; i < width - half; i++) {
            int32_t first = rintf(low[i] * inverse), second = rintf(high[i] * inverse);
            codes[i] = (first & 15) | second << 4;
        }
        if (width % 2)
            codes[half - 1] = (int32_t)rintf(low[half - 1] * inverse) & 15;
    }
}

void decode4(long n, long size, float *restrict x, const float *restrict scales,
             const int8_t *restrict codes)
{
    for (long start = 0; start < n; start += size, codes += size / 2) {
        long width = n - start < size ? n - start : size, half = (width + 1) / 2;
        float *low = x + start, *high = low + half, step = *scales++;
        for (long i = 0; i < width - half; i++) {
            low[i] = ((int8_t)(codes[i] << 4) >> 4) * step; /* the shift copies the sign */
            high[i] = (codes[i] >> 4) * step;
        }
        if (width % 2)
            low[half - 1] = ((int8_t)(codes[half - 1] << 4) >> 4) * step;
    }
}
