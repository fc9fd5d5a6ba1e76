/* Included by rows_body.h where vectors hold 16 float32: number formats that become float32 in registers. By way of an
 * array in memory they would wait for its stores. What is left at the end is loaded with a
 * mask: zeros add nothing. */
typedef struct {
    __m512 xx, yy, xy, dd, most; /* most: of |x - y|; a NaN is not kept here, but it is in the sums */
} FN(Lanes);

#define LARGER_SIZE(A, B) _mm512_range_ps(A, B, 11) /* max(|A|, |B|) */

INLINE TARGET FN(Lanes) FN(no_lanes)(void) {
    __m512 zero = _mm512_setzero_ps();
    FN(Lanes) none = {zero, zero, zero, zero, zero};
    return none;
}

INLINE TARGET void FN(add_lanes)(FN(Lanes) *sums, __m512 x, __m512 y) {
    __m512 d = _mm512_sub_ps(x, y);
    sums->xx = _mm512_fmadd_ps(x, x, sums->xx);
    sums->yy = _mm512_fmadd_ps(y, y, sums->yy);
    sums->xy = _mm512_fmadd_ps(x, y, sums->xy);
    sums->dd = _mm512_fmadd_ps(d, d, sums->dd);
    sums->most = LARGER_SIZE(sums->most, d);
}

INLINE TARGET void FN(add_up)(const FN(Lanes) *a, const FN(Lanes) *b, FN(Sums) *sums) {
    uint32_t most = as_bits(_mm512_reduce_max_ps(LARGER_SIZE(a->most, b->most)));
    sums->xx += (double)_mm512_reduce_add_ps(_mm512_add_ps(a->xx, b->xx));
    sums->yy += (double)_mm512_reduce_add_ps(_mm512_add_ps(a->yy, b->yy));
    sums->xy += (double)_mm512_reduce_add_ps(_mm512_add_ps(a->xy, b->xy));
    sums->dd += (double)_mm512_reduce_add_ps(_mm512_add_ps(a->dd, b->dd));
    if (most > sums->most) sums->most = most;
}

/* n fp16 values of each side. */
TARGET static void FN(half_sums)(const char *x, const char *y, int64_t n, FN(Sums) *sums) {
    FN(Lanes) even = FN(no_lanes)(), odd = FN(no_lanes)();
    int64_t i = 0;
#define HALVES(P, AT) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((P) + 2 * (AT))))
    for (; i + 32 <= n; i += 32) {
        FN(add_lanes)(&even, HALVES(x, i), HALVES(y, i));
        FN(add_lanes)(&odd, HALVES(x, i + 16), HALVES(y, i + 16));
    }
#undef HALVES
    for (; i < n; i += 16) {
        __mmask16 there = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        FN(add_lanes)(&even, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, x + 2 * i)),
                      _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, y + 2 * i)));
    }
    FN(add_up)(&even, &odd, sums);
}

#if defined(TABLES)
/* Of 32 bf16 values of each side, which stand for fp8 ones: the products by the processor's own instruction where there is
 * one, else (and always the differences, which are no bf16 values) in float32. a, b take the two halves. */
INLINE TARGET void FN(add_words)(FN(Lanes) *a, FN(Lanes) *b, __m512i x, __m512i y) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512 x0 = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), x1 = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
    __m512 y0 = _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), y1 = _mm512_castsi512_ps(_mm512_and_si512(y, upper));
#if defined(DOTS)
    __m512 d0 = _mm512_sub_ps(x0, y0), d1 = _mm512_sub_ps(x1, y1);
    a->xx = _mm512_dpbf16_ps(a->xx, (__m512bh)x, (__m512bh)x);
    a->yy = _mm512_dpbf16_ps(a->yy, (__m512bh)y, (__m512bh)y);
    a->xy = _mm512_dpbf16_ps(a->xy, (__m512bh)x, (__m512bh)y);
    a->dd = _mm512_fmadd_ps(d0, d0, a->dd);
    b->dd = _mm512_fmadd_ps(d1, d1, b->dd);
    a->most = LARGER_SIZE(a->most, LARGER_SIZE(d0, d1));
#else
    FN(add_lanes)(a, x0, y0);
    FN(add_lanes)(b, x1, y1);
#endif
}

/* A table in registers, and the bf16 values of 64 codes. Bytes are woven together within quarters, so that the order of
 * the values is lost: sums of pairs do not need it. */
typedef struct {
    __m512i low0, low1, high0, high1;
} FN(Held);

INLINE TARGET FN(Held) FN(hold)(const FN(Table) *table) {
    FN(Held) held = {_mm512_loadu_si512(table->low), _mm512_loadu_si512(table->low + 64),
                     _mm512_loadu_si512(table->high), _mm512_loadu_si512(table->high + 64)};
    return held;
}

INLINE TARGET void FN(look_up)(const FN(Held) *held, __m512i codes, __m512i *first, __m512i *second) {
    __m512i low = _mm512_permutex2var_epi8(held->low0, codes, held->low1);
    __m512i high = _mm512_permutex2var_epi8(held->high0, codes, held->high1);
    high = _mm512_ternarylogic_epi64(high, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (codes & sign) */
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
}

/* n fp8 values of each side, 64 at a time. ahead: bytes that are asked for ahead. */
TARGET static void FN(fp8_sums)(const FN(Table) *left, const FN(Table) *right, const char *x, const char *y, int64_t n, int64_t ahead, FN(Sums) *sums) {
    const FN(Held) held_x = FN(hold)(left), held_y = FN(hold)(right);
    FN(Lanes) a = FN(no_lanes)(), b = FN(no_lanes)(), c = FN(no_lanes)(), d = FN(no_lanes)();
    __m512i x0, x1, y0, y1;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        _mm_prefetch(x + i + ahead, _MM_HINT_T0);
        _mm_prefetch(y + i + ahead, _MM_HINT_T0);
        FN(look_up)(&held_x, _mm512_loadu_si512(x + i), &x0, &x1);
        FN(look_up)(&held_y, _mm512_loadu_si512(y + i), &y0, &y1);
        FN(add_words)(&a, &b, x0, y0);
        FN(add_words)(&c, &d, x1, y1);
    }
    if (i < n) {
        __mmask64 there = (1ull << (n - i)) - 1;
        FN(look_up)(&held_x, _mm512_maskz_loadu_epi8(there, x + i), &x0, &x1);
        FN(look_up)(&held_y, _mm512_maskz_loadu_epi8(there, y + i), &y0, &y1);
        FN(add_words)(&a, &b, x0, y0);
        FN(add_words)(&c, &d, x1, y1);
    }
    FN(add_up)(&a, &b, sums);
    FN(add_up)(&c, &d, sums);
}
#endif
#undef LARGER_SIZE
