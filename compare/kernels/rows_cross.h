/* Included by rows_body.h: inner products of every row of some streams with the same row of others, cross() at the end.
 * Values become float32 in registers or in the first cache; products are summed in float32 over blocks of channels and in
 * float64 over the blocks. */

/* Values of row r from channel `first` on as float32: where they are, or made in `made`, [n]. */
TARGET static const float *FN(floats)(const Side *side, int64_t r, int64_t first, int64_t n, float *made) {
    const char *row = side->rows + r * side->stride;
    if (side->format == FP32 && !side->scale) return (const float *)row + first;
    FN(convert)(side, row, first, n, side->scale ? side->scale[r] : 1, made);
    return made;
}

#if LANES == 16
/* Up to eight x rows are laid side by side, 16 channels of each in turn: in their own places, which lie at the same offset
 * in their pages, they and the y rows would drive each other out of the first cache. The y rows come from the memory and
 * pass by a few at a time, each from end to end. Of bf16 rows every 32 channels are cut into the even and the odd ones,
 * which takes one operation for 16 values; the x rows lie in the same order then ("woven"). */
#define PRODUCTS 24 /* sums that stay in registers: 8 x rows by 3 y rows, or 4 by 6 */
#define PACKED_AHEAD 1024 /* bytes that are asked for ahead */
#define UNROLL _Pragma("GCC unroll 24") for

typedef struct {
    float *packed, *made; /* x rows side by side; values that are made: a row, or CHUNK channels of some y rows */
    int64_t *order;       /* the y streams, those of bf16 first */
    void *memory;
} FN(Desk);

static int FN(desk)(FN(Desk) *desk, int64_t ny, int64_t width) {
    int64_t whole = (width + 31) / 32 * 32, made = whole > CHUNK * PRODUCTS / 4 ? whole : CHUNK * PRODUCTS / 4;
    desk->memory = malloc((size_t)(64 + (8 * whole + made) * 4 + ny * 8));
    if (!desk->memory) return 1;
    desk->packed = (float *)(((uintptr_t)desk->memory + 63) & ~(uintptr_t)63); /* whole lines */
    desk->made = desk->packed + 8 * whole;
    desk->order = (int64_t *)(desk->made + made);
    return 0;
}

INLINE TARGET __mmask16 FN(first_of_16)(int64_t n) { return (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1 : 0); }
INLINE TARGET __mmask32 FN(first_of_32)(int64_t n) { return (__mmask32)(n >= 32 ? 0xffffffffu : (1u << n) - 1); }
INLINE TARGET __m512 FN(even)(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
INLINE TARGET __m512 FN(odd)(__m512i words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Row r of `high` streams, of which there are nx, side by side. */
TARGET static void FN(pack)(const Side *xs, int64_t nx, int64_t high, int64_t r, int64_t width, int woven, FN(Desk) *desk) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int64_t s = 0; s < high; s++) {
        float *out = desk->packed + 16 * s;
        if (s < nx && woven && xs[s].format == BF16 && !xs[s].scale) {
            const char *p = xs[s].rows + r * xs[s].stride;
            for (int64_t i = 0; i < width; i += 32, out += 32 * high) {
                __m512i words = _mm512_maskz_loadu_epi16(FN(first_of_32)(width - i), p + 2 * i);
                _mm512_store_ps(out, FN(even)(words));
                _mm512_store_ps(out + 16 * high, FN(odd)(words));
            }
            continue;
        }
        const float *x = s < nx ? FN(floats)(xs + s, r, 0, width, desk->made) : NULL;
        for (int64_t i = 0; i < width; i += 32, out += 32 * high) {
            __m512 a = x ? _mm512_maskz_loadu_ps(FN(first_of_16)(width - i), x + i) : _mm512_setzero_ps();
            __m512 b = x ? _mm512_maskz_loadu_ps(FN(first_of_16)(width - i - 16), x + i + 16) : _mm512_setzero_ps();
            _mm512_store_ps(out, woven ? _mm512_permutex2var_ps(a, even, b) : a);
            _mm512_store_ps(out + 16 * high, woven ? _mm512_permutex2var_ps(a, odd, b) : b);
        }
    }
}

/* Products of 16 channels of `high` packed rows and `wide` others, into the sums. */
INLINE TARGET void FN(multiply)(const int high, const int wide, const float *x, const __m512 *p, __m512 *sums) {
    UNROLL (int s = 0; s < high; s++) {
        __m512 q = _mm512_load_ps(x + 16 * s);
        __asm__("" : "+v"(q)); /* loaded once: GCC makes it an operand in memory of every product otherwise */
        UNROLL (int k = 0; k < wide; k++) sums[s * wide + k] = _mm512_fmadd_ps(q, p[k], sums[s * wide + k]);
    }
}

/* Inner products of `high` packed rows with `wide` rows over n channels. The first nx by ny of them are added to
 * out[.][order[.]] of rows that are `stride` long. */
INLINE TARGET void FN(tile)(const int high, const int wide, const int woven, const float *x, const void *const *y, int64_t n,
                            int64_t nx, int64_t ny, double *out, int64_t stride, const int64_t *order) {
    __m512 sums[PRODUCTS], p[PRODUCTS / 4];
    UNROLL (int s = 0; s < PRODUCTS; s++) sums[s] = _mm512_setzero_ps();
    int64_t i = 0;
    if (woven) {
        for (; i + 32 <= n; i += 32, x += 32 * high) {
            UNROLL (int k = 0; k < wide; k++) {
                const char *at = (const char *)y[k] + 2 * i;
                p[k] = FN(even)(_mm512_loadu_si512(at));
                _mm_prefetch(at + PACKED_AHEAD, _MM_HINT_T0);
            }
            FN(multiply)(high, wide, x, p, sums);
            UNROLL (int k = 0; k < wide; k++) p[k] = FN(odd)(_mm512_loadu_si512((const char *)y[k] + 2 * i));
            FN(multiply)(high, wide, x + 16 * high, p, sums);
        }
        if (i < n) {
            __m512i words[PRODUCTS / 4];
            UNROLL (int k = 0; k < wide; k++) {
                words[k] = _mm512_maskz_loadu_epi16(FN(first_of_32)(n - i), (const char *)y[k] + 2 * i);
                p[k] = FN(even)(words[k]);
            }
            FN(multiply)(high, wide, x, p, sums);
            UNROLL (int k = 0; k < wide; k++) p[k] = FN(odd)(words[k]);
            FN(multiply)(high, wide, x + 16 * high, p, sums);
        }
    } else {
        for (; i + 16 <= n; i += 16, x += 16 * high) {
            UNROLL (int k = 0; k < wide; k++) {
                const char *at = (const char *)y[k] + 4 * i;
                p[k] = _mm512_loadu_ps(at);
                _mm_prefetch(at + PACKED_AHEAD, _MM_HINT_T0);
            }
            FN(multiply)(high, wide, x, p, sums);
        }
        if (i < n) {
            UNROLL (int k = 0; k < wide; k++) p[k] = _mm512_maskz_loadu_ps(FN(first_of_16)(n - i), (const float *)y[k] + i);
            FN(multiply)(high, wide, x, p, sums);
        }
    }
    UNROLL (int s = 0; s < high; s++)
        UNROLL (int k = 0; k < wide; k++)
            if (s < nx && k < ny) out[s * stride + order[k]] += (double)_mm512_reduce_add_ps(sums[s * wide + k]);
}

#define TILE(NAME, HIGH, WIDE, WOVEN)                                                                            \
    TARGET static void FN(NAME)(const float *x, const void *const *y, int64_t n, int64_t nx, int64_t ny, double *out, \
                                int64_t stride, const int64_t *order) {                                          \
        FN(tile)(HIGH, WIDE, WOVEN, x, y, n, nx, ny, out, stride, order);                                        \
    }
TILE(tile_8_3, 8, 3, 0)
TILE(tile_4_6, 4, 6, 0)
TILE(woven_8_3, 8, 3, 1)
TILE(woven_4_6, 4, 6, 1)
#undef TILE

/* Row r of the packed streams with row r of count others. */
TARGET static void FN(pass)(FN(Desk) *desk, int64_t high, int64_t nx, const Side *ys, const int64_t *order, int64_t count, int64_t r,
                            int64_t width, int woven, double *out, int64_t stride) {
    for (int64_t k = 0, wide = PRODUCTS / high; k < count; k += wide) {
        int64_t most = DIRECT;
        for (int64_t q = k; q < count && q < k + wide && !woven; q++)
            if (ys[order[q]].format != FP32 || ys[order[q]].scale) most = CHUNK;
        for (int64_t first = 0; first < width; first += most) {
            int64_t n = width - first < most ? width - first : most;
            const void *y[PRODUCTS / 4];
            for (int64_t q = 0; q < wide; q++) {
                if (k + q >= count) y[q] = y[q - 1];
                else if (woven) y[q] = ys[order[k + q]].rows + r * ys[order[k + q]].stride + 2 * first;
                else y[q] = FN(floats)(ys + order[k + q], r, first, n, desk->made + q * CHUNK);
            }
            const float *x = desk->packed + first * high;
            if (high == 8 && woven) FN(woven_8_3)(x, y, n, nx, count - k, out, stride, order + k);
            else if (high == 8) FN(tile_8_3)(x, y, n, nx, count - k, out, stride, order + k);
            else if (woven) FN(woven_4_6)(x, y, n, nx, count - k, out, stride, order + k);
            else FN(tile_4_6)(x, y, n, nx, count - k, out, stride, order + k);
        }
    }
}

TARGET static int FN(cross)(const Side *xs, int64_t nx, const Side *ys, int64_t ny, int64_t start, int64_t stop, int64_t width, double *out) {
    FN(Desk) desk;
    if (FN(desk)(&desk, ny, width)) return 1;
    int64_t words = 0, others = ny;
    for (int64_t k = 0; k < ny; k++)
        if (ys[k].format == BF16 && !ys[k].scale) desk.order[words++] = k;
        else desk.order[--others] = k;
    for (int64_t r = start; r < stop; r++, out += nx * ny)
        for (int64_t s = 0, high; s < nx; s += high) {
            high = nx - s > 4 ? 8 : 4;
            for (int woven = 1; woven >= 0; woven--) {
                int64_t first = woven ? 0 : words, count = woven ? words : ny - words;
                if (count == 0) continue;
                FN(pack)(xs + s, nx - s, high, r, width, woven, &desk);
                FN(pass)(&desk, high, nx - s, ys, desk.order + first, count, r, width, woven, out + s * ny, ny);
            }
        }
    free(desk.memory);
    return 0;
}
#undef PRODUCTS
#undef PACKED_AHEAD
#undef UNROLL
#else
/* Inner products of 4 rows with 4 rows over n channels: 16 sums that stay in registers. The first nx by ny of them are
 * added to out[.][stride]. */
TARGET static void FN(tile)(const float *const *x, const float *const *y, int64_t n, int64_t nx, int64_t ny, double *out, int64_t stride) {
    const float *restrict x0 = x[0], *restrict x1 = x[1], *restrict x2 = x[2], *restrict x3 = x[3];
    const float *restrict y0 = y[0], *restrict y1 = y[1], *restrict y2 = y[2], *restrict y3 = y[3];
    float a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0, d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (int64_t i = 0; i < n; i++) {
        a0 += x0[i] * y0[i]; a1 += x0[i] * y1[i]; a2 += x0[i] * y2[i]; a3 += x0[i] * y3[i];
        b0 += x1[i] * y0[i]; b1 += x1[i] * y1[i]; b2 += x1[i] * y2[i]; b3 += x1[i] * y3[i];
        c0 += x2[i] * y0[i]; c1 += x2[i] * y1[i]; c2 += x2[i] * y2[i]; c3 += x2[i] * y3[i];
        d0 += x3[i] * y0[i]; d1 += x3[i] * y1[i]; d2 += x3[i] * y2[i]; d3 += x3[i] * y3[i];
    }
    float sums[16] = {a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3};
    for (int s = 0; s < 4; s++)
        for (int k = 0; k < 4; k++)
            if (s < nx && k < ny) out[s * stride + k] += sums[4 * s + k];
}

/* For every row r: the matrix product of row r of the nx xs and row r of the ny ys, blocked so that a chunk of four x rows
 * stays in the first cache while all y rows pass by. 0 when done, 1 where memory is short. */
TARGET static int FN(cross)(const Side *xs, int64_t nx, const Side *ys, int64_t ny, int64_t start, int64_t stop, int64_t width, double *out) {
    float made_x[4][CHUNK], made_y[4][CHUNK];
    for (int64_t r = start; r < stop; r++, out += nx * ny)
        for (int64_t first = 0; first < width; first += CHUNK) {
            int64_t n = width - first < CHUNK ? width - first : CHUNK;
            for (int64_t s = 0; s < nx; s += 4) {
                const float *x[4], *y[4];
                for (int64_t q = 0; q < 4; q++) x[q] = s + q < nx ? FN(floats)(xs + s + q, r, first, n, made_x[q]) : x[q - 1];
                for (int64_t k = 0; k < ny; k += 4) {
                    for (int64_t q = 0; q < 4; q++) y[q] = k + q < ny ? FN(floats)(ys + k + q, r, first, n, made_y[q]) : y[q - 1];
                    FN(tile)(x, y, n, nx - s, ny - k, out + s * ny + k, ny);
                }
            }
        }
    return 0;
}
#endif
