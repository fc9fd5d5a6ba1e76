/* Included by rows.c once per instruction set: LEVEL names it, TARGET switches it on. */
#define FN(name) JOIN(name, LEVEL)

/* fp16 values, and fp8 ones by way of fp16: e5m2 is its upper half, e4m3 its middle with an exponent that is 8 less. */
TARGET static void FN(halves)(const char *p, int64_t n, float *restrict out) {
    int64_t i = 0;
#if LANES == 16
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 2 * i))));
#elif LANES == 8
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 2 * i))));
#endif
    for (; i < n; i++) out[i] = half_value(load16(p, i));
}

TARGET static void FN(e5m2)(const char *p, int64_t n, float *restrict out) {
    int64_t i = 0;
#if LANES == 16
    for (; i + 16 <= n; i += 16) {
        __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p + i)));
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_slli_epi16(wide, 8)));
    }
#elif LANES == 8
    for (; i + 8 <= n; i += 8) {
        __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(p + i)));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_slli_epi16(wide, 8)));
    }
#endif
    for (; i < n; i++) out[i] = half_value((uint32_t)(uint8_t)p[i] << 8);
}

TARGET static void FN(e4m3)(const char *p, int64_t n, float *restrict out) {
    int64_t i = 0;
#if LANES == 16
    const __m256i rest = _mm256_set1_epi16(0x7f), sign = _mm256_set1_epi16(0x80);
    for (; i + 16 <= n; i += 16) {
        __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p + i)));
        __m256i value = _mm256_and_si256(wide, rest);
        __m256i half = _mm256_or_si256(_mm256_slli_epi16(value, 7), _mm256_slli_epi16(_mm256_and_si256(wide, sign), 8));
        __m512 found = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
        __mmask16 nan = _mm256_cmpeq_epi16_mask(value, rest);
        _mm512_storeu_ps(out + i, _mm512_mask_mov_ps(found, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000))));
    }
#endif
    for (; i < n; i++) out[i] = e4m3_value((uint8_t)p[i]);
}

#if defined(TABLES)
/* fp8 values as bf16, exactly: every one of them is a bf16 value. The two bytes of the 128 magnitudes are looked up, the
 * sign is put to the upper one. Words are put in order before bytes are woven together within their quarters. */
typedef struct {
    uint8_t low[128], high[128];
} FN(Table);

static void FN(fill)(FN(Table) *table, int64_t format) {
    for (uint32_t b = 0; b < 128; b++) {
        uint32_t bits = as_bits(format == FP8_E4M3 ? e4m3_value(b) : half_value(b << 8));
        table->low[b] = (uint8_t)(bits >> 16);
        table->high[b] = (uint8_t)(bits >> 24);
    }
}

TARGET static void FN(fp8_words)(const FN(Table) *table, const char *p, int64_t n, uint16_t *restrict out) {
    const __m512i low0 = _mm512_loadu_si512(table->low), low1 = _mm512_loadu_si512(table->low + 64);
    const __m512i high0 = _mm512_loadu_si512(table->high), high1 = _mm512_loadu_si512(table->high + 64);
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), sign = _mm512_set1_epi8((char)0x80);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        _mm_prefetch(p + i + AHEAD, _MM_HINT_T0); /* the loop over these words is long: memory would stand still */
        __m512i codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(p + i));
        __m512i low = _mm512_permutex2var_epi8(low0, codes, low1), high = _mm512_permutex2var_epi8(high0, codes, high1);
        high = _mm512_ternarylogic_epi64(high, codes, sign, 0xf8); /* high | (codes & sign) */
        _mm512_storeu_si512(out + i, _mm512_unpacklo_epi8(low, high));
        _mm512_storeu_si512(out + i + 32, _mm512_unpackhi_epi8(low, high));
    }
    for (; i < n; i++) {
        uint8_t code = (uint8_t)p[i];
        out[i] = (uint16_t)(table->low[code & 0x7f] | (table->high[code & 0x7f] | (code & 0x80)) << 8);
    }
}
#endif

/* n values from channel `first` on as float32, exactly (fp64 is rounded), times the row's factor. */
TARGET static void FN(convert)(const Side *side, const char *row, int64_t first, int64_t n, float scale, float *restrict out) {
    const char *p = row + first * ITEM[side->format];
    switch (side->format) {
    case BF16:
        for (int64_t i = 0; i < n; i++) out[i] = as_float((uint32_t)load16(p, i) << 16);
        break;
    case FP16:
        FN(halves)(p, n, out);
        break;
    case FP32:
        for (int64_t i = 0; i < n; i++) out[i] = load_float(p, i);
        break;
    case FP64:
        for (int64_t i = 0; i < n; i++) out[i] = (float)load_double(p, i);
        break;
    case FP8_E4M3:
        FN(e4m3)(p, n, out);
        break;
    default:
        FN(e5m2)(p, n, out);
    }
    if (side->scale)
        for (int64_t i = 0; i < n; i++) out[i] *= scale;
}

/* The sums of one chunk. The largest |x - y| is found among bit patterns: they are ordered as the values are, and an
 * integer maximum is vectorised where one of floats is not. */
typedef struct {
    double xx, yy, xy, dd;
    uint32_t most;
} FN(Sums);

/* words: pairs of bf16 values, two per 32 bits. */
TARGET static void FN(bf16_sums)(const char *x, const char *y, int64_t words, FN(Sums) *sums) {
    float xx0 = 0, xx1 = 0, yy0 = 0, yy1 = 0, xy0 = 0, xy1 = 0, dd0 = 0, dd1 = 0;
    uint32_t most0 = 0, most1 = 0;
    for (int64_t i = 0; i < words; i++) {
        uint32_t a = load32(x, i), b = load32(y, i);
        float x0 = as_float(a << 16), x1 = as_float(a & 0xffff0000u);
        float y0 = as_float(b << 16), y1 = as_float(b & 0xffff0000u);
        xx0 += x0 * x0; xx1 += x1 * x1; yy0 += y0 * y0; yy1 += y1 * y1; xy0 += x0 * y0; xy1 += x1 * y1;
        float d0 = x0 - y0, d1 = x1 - y1;
        dd0 += d0 * d0; dd1 += d1 * d1;
        uint32_t t0 = as_bits(d0) & 0x7fffffffu, t1 = as_bits(d1) & 0x7fffffffu;
        most0 = t0 > most0 ? t0 : most0; most1 = t1 > most1 ? t1 : most1;
    }
    sums->xx += (double)xx0 + xx1; sums->yy += (double)yy0 + yy1; sums->xy += (double)xy0 + xy1;
    sums->dd += (double)dd0 + dd1;
    most0 = most0 > most1 ? most0 : most1;
    if (most0 > sums->most) sums->most = most0;
}

#define FLOAT_LOOP(REAL, X, Y)                                                                                  \
    REAL xx = 0, yy = 0, xy = 0, dd = 0;                                                                        \
    uint32_t most = 0;                                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                                           \
        float a = X, b = Y;                                                                                     \
        REAL p = a, q = b, d = p - q;                                                                           \
        xx += p * p; yy += q * q; xy += p * q; dd += d * d;                                                     \
        uint32_t t = as_bits(a - b) & 0x7fffffffu;                                                              \
        most = t > most ? t : most;                                                                             \
    }                                                                                                           \
    sums->xx += xx; sums->yy += yy; sums->xy += xy; sums->dd += dd;                                             \
    if (most > sums->most) sums->most = most;

TARGET static void FN(float_sums)(const float *x, const float *y, int64_t n, FN(Sums) *sums) {
    FLOAT_LOOP(float, x[i], y[i])
}

TARGET static void FN(double_sums)(const char *x, const char *y, int64_t n, FN(Sums) *sums) {
    FLOAT_LOOP(double, load_float(x, i), load_float(y, i))
}
#undef FLOAT_LOOP

#if LANES == 16
#include "rows_lanes.h"
#endif

/* A 64-bit hash of the row's bytes (a multilinear one: products of sums of words and keys), and of its factor. */
TARGET static uint64_t FN(hash_row)(const Side *side, const char *row, int64_t width, float scale) {
    int64_t bytes = width * ITEM[side->format], words = bytes / 8;
    uint64_t sum = (uint64_t)bytes * 0x9E3779B97F4A7C15ull;
    for (int64_t i = 0; i < words; i++) {
        uint64_t word = load64(row, i), key = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15ull;
        uint32_t low = (uint32_t)word + (uint32_t)key, high = (uint32_t)(word >> 32) + (uint32_t)(key >> 32);
        sum += (uint64_t)low * high;
    }
    uint64_t rest = 0;
    memcpy(&rest, row + 8 * words, (size_t)(bytes - 8 * words));
    uint64_t ends[2] = {rest, side->scale ? as_bits(scale) : 0};
    for (int64_t i = 0; i < 2; i++) {
        uint64_t key = (uint64_t)(words + 1 + i) * 0x9E3779B97F4A7C15ull;
        uint32_t low = (uint32_t)ends[i] + (uint32_t)key, high = (uint32_t)(ends[i] >> 32) + (uint32_t)(key >> 32);
        sum += (uint64_t)low * high;
    }
    sum ^= sum >> 29;
    sum *= 0xBF58476D1CE4E5B9ull;
    return sum ^ (sum >> 32);
}

TARGET static void FN(hash_rows)(const Side *side, int64_t width, int64_t count, const int64_t *index, uint64_t *hashes) {
    for (int64_t r = 0; r < count; r++)
        hashes[r] = FN(hash_row)(side, side->rows + index[r] * side->stride, width, side->scale ? side->scale[index[r]] : 1);
}

/* |x - y| in bf16 steps of y's magnitude: one step is 2^(exponent - 7) for y in [2^exponent, 2^(exponent + 1)). */
TARGET static void FN(steps)(const float *restrict x, const float *restrict y, int64_t n, float *restrict out) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t exponent = as_bits(y[i]) & 0x7f800000u;
        float difference = as_float(as_bits(x[i] - y[i]) & 0x7fffffffu);
        out[i] = difference * as_float(0x7f000000u - exponent) * 128.0f;
    }
}

TARGET static void FN(bf16_steps)(const char *x, const char *y, int64_t n, float *restrict out) {
    for (int64_t i = 0; i < n; i++) {
        float a = as_float((uint32_t)load16(x, i) << 16), b = as_float((uint32_t)load16(y, i) << 16);
        uint32_t exponent = as_bits(b) & 0x7f800000u;
        float difference = as_float(as_bits(a - b) & 0x7fffffffu);
        out[i] = difference * as_float(0x7f000000u - exponent) * 128.0f;
    }
}

/* How many of the 16-bit values are at most `at`. */
TARGET static uint32_t FN(count_upto)(const uint16_t *values, int64_t n, uint16_t at) {
    uint32_t total = 0;
    for (int64_t first = 0; first < n; first += 32768) { /* counts of one block fit 16 bits: no widening in the loop */
        int64_t stop = n - first < 32768 ? n : first + 32768;
        uint16_t few = 0;
        for (int64_t i = first; i < stop; i++) few += values[i] <= at;
        total += few;
    }
    return total;
}

TARGET static void FN(upper_halves)(const float *values, int64_t n, uint16_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)(as_bits(values[i]) >> 16);
}

static int FN(compare_bits)(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The smallest upper half that more than `rank` values do not exceed; *guess is where to look first. */
TARGET static uint16_t FN(upper_of)(const uint16_t *upper, int64_t n, uint32_t rank, uint16_t guess) {
    uint32_t low = 0, high = 0x7f80, width = 8, middle = guess;
    int above = FN(count_upto)(upper, n, guess) > rank;
    /* steps of growing width away from the guess, then bisection in between */
    while (above ? middle > 0 : middle < 0x7f80) {
        uint32_t next = above ? (middle > width ? middle - width : 0) : (middle + width < 0x7f80 ? middle + width : 0x7f80);
        int beyond = FN(count_upto)(upper, n, (uint16_t)next) > rank;
        if (beyond != above) {
            low = above ? next + 1 : middle + 1;
            high = above ? middle : next;
            break;
        }
        middle = next;
        width *= 4;
        low = 0;
        high = above ? middle : 0x7f80;
    }
    while (low < high) {
        uint32_t half = low + (high - low) / 2;
        if (FN(count_upto)(upper, n, (uint16_t)half) > rank) high = half;
        else low = half + 1;
    }
    return (uint16_t)high;
}

/* The exact median of n values >= 0: the upper halves of its bits by counting, the rest among the few values that
 * share them. upper, room: [n] each. */
TARGET static double FN(median)(const float *values, int64_t n, uint16_t *guess, uint16_t *upper, uint32_t *room) {
    uint32_t ranks[2] = {(uint32_t)((n - 1) / 2), (uint32_t)(n / 2)};
    double sum = 0;
    FN(upper_halves)(values, n, upper);
    uint16_t before = 0xffff;
    uint32_t less = 0, few = 0;
    for (int k = 0; k < 2; k++) {
        uint16_t here = *guess;
        if (k == 0 || less + few <= ranks[1]) here = FN(upper_of)(upper, n, ranks[k], *guess);
        *guess = here;
        if (here != before) {
            less = here ? FN(count_upto)(upper, n, (uint16_t)(here - 1)) : 0;
            few = 0;
            uint32_t most = 0, least = 0xffffffffu;
            for (int64_t i = 0; i < n; i++) {
                uint32_t bits = as_bits(values[i]);
                room[few] = bits;
                few += upper[i] == here;
            }
            for (uint32_t i = 0; i < few; i++) {
                most = room[i] > most ? room[i] : most;
                least = room[i] < least ? room[i] : least;
            }
            if (most != least) qsort(room, few, sizeof *room, FN(compare_bits));
            before = here;
        }
        sum += (double)as_float(room[ranks[k] - less]);
    }
    return 0.5 * sum;
}

static int FN(compare_doubles)(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double FN(ldexp)(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

INLINE int FN(finite)(float value) { return (as_bits(value) & 0x7f800000u) != 0x7f800000u; }

/* A row that float32 sums cannot do: everything in float64, as the plain definition has it. x, y: [width]. */
TARGET static void FN(careful)(const Job *job, const float *x, const float *y, double *room, double *out, uint8_t *flags) {
    int64_t n = job->width, next = 0;
    double sum[7] = {0, 0, 0, 0, 0, 0, 0}, most = 0;
    int nan_left = 0, nan_right = 0, any_left = 0, any_right = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = x[i], b = y[i], d = a - b, size = d < 0 ? -d : d;
        int kept = !(next < job->massive_count && job->massive[next] == i);
        if (!kept) next++;
        nan_left |= !FN(finite)(x[i]);
        nan_right |= !FN(finite)(y[i]);
        any_left |= x[i] != 0;
        any_right |= y[i] != 0;
        sum[XX] += a * a; sum[YY] += b * b; sum[XY] += a * b; sum[DD] += d * d;
        if (kept) { sum[TXX] += a * a; sum[TYY] += b * b; sum[TXY] += a * b; }
        if (size > most) most = size;
    }
    memcpy(out, sum, sizeof sum);
    out[MAX_ABS] = most;
    out[ULP] = 0;
    *flags |= (nan_left ? NAN_LEFT : 0) | (nan_right ? NAN_RIGHT : 0) | (any_left ? 0 : ZERO_LEFT) |
              (any_right ? 0 : ZERO_RIGHT);
    if (!(job->want & WANT_ULP) || nan_left || nan_right) return;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - y[i];
        int exponent = (int)((as_bits(y[i]) >> 23) & 0xff) - 126;
        room[i] = (d < 0 ? -d : d) * FN(ldexp)(8 - exponent);
    }
    qsort(room, (size_t)n, sizeof *room, FN(compare_doubles));
    out[ULP] = 0.5 * (room[(n - 1) / 2] + room[n / 2]);
}

/* Whether every channel holds one and the same value, which is neither zero nor NaN: nearly always the second one
 * already differs. fp64 counts as what it is rounded to. */
static int FN(flat)(const Side *side, const char *row, int64_t width, float scale) {
    int64_t item = ITEM[side->format];
    float value, other;
    if (side->format != FP64 && width > 1 && memcmp(row, row + item, (size_t)(item * (width - 1))) != 0) return 0;
    FN(convert)(side, row, 0, 1, scale, &value);
    if (value == 0 || value != value) return 0;
    if (side->format == FP64)
        for (int64_t i = 1; i < width; i++) {
            FN(convert)(side, row, i, 1, scale, &other);
            if (other != value) return 0;
        }
    return 1;
}

/* Memory that one call needs: one row of each kind. */
typedef struct {
    float *steps, *x, *y;
    double *doubles;
    uint16_t *upper, guess;
    uint32_t *few;
#if defined(TABLES)
    FN(Table) tables[2]; /* of e4m3 and of e5m2 */
    int64_t ahead;       /* bytes of fp8 rows that are asked for ahead */
#endif
} FN(Room);

static void FN(release)(FN(Room) *room) {
    free(room->steps); free(room->x); free(room->y); free(room->doubles);
    free(room->upper); free(room->few);
}

static int FN(take)(FN(Room) *room, const Job *job) {
    size_t n = (size_t)job->width;
    memset(room, 0, sizeof *room);
#if defined(TABLES)
    FN(fill)(&room->tables[0], FP8_E4M3);
    FN(fill)(&room->tables[1], FP8_E5M2);
    room->ahead = bytes_ahead();
#endif
    room->steps = malloc(n * 4); room->x = malloc(n * 4); room->y = malloc(n * 4); room->doubles = malloc(n * 8);
    room->upper = malloc(n * 2); room->few = malloc(n * 4 + 4);
    if (!room->steps || !room->x || !room->y || !room->doubles || !room->upper || !room->few) {
        FN(release)(room);
        return 1;
    }
    return 0;
}

/* Whether a side's values are bf16, or are quickly made bf16, with no factor. */
INLINE int FN(narrow)(const Side *side) {
#if defined(TABLES)
    if (side->format == FP8_E4M3 || side->format == FP8_E5M2) return !side->scale;
#endif
    return side->format == BF16 && !side->scale;
}

/* n channels of a narrow side as bf16: where they are, or made in `made`. */
TARGET static const char *FN(words)(const FN(Room) *room, const Side *side, const char *p, int64_t n, uint16_t *made) {
#if defined(TABLES)
    if (side->format != BF16) {
        FN(fp8_words)(&room->tables[side->format == FP8_E5M2], p, n, made);
        return (const char *)made;
    }
#endif
    (void)room; (void)side; (void)n; (void)made;
    return p;
}

/* As convert(), fp8 by way of bf16 where that is quick. made: [n]. */
TARGET static void FN(values)(const FN(Room) *room, const Side *side, const char *p, int64_t n, float scale, uint16_t *made, float *restrict out) {
#if defined(TABLES)
    if (side->format == FP8_E4M3 || side->format == FP8_E5M2) {
        FN(words)(room, side, p, n, made);
        for (int64_t i = 0; i < n; i++) out[i] = as_float((uint32_t)made[i] << 16) * scale;
        return;
    }
#endif
    (void)room; (void)made;
    FN(convert)(side, p, 0, n, scale, out);
}

/* Both sides of n channels, at p and q, into the sums, through bf16 or float32 in memory where needed (at most CHUNK). */
TARGET static void FN(chunk_sums)(const Job *job, const char *p, const char *q, int64_t n, float sx, float sy, const FN(Room) *room, FN(Sums) *sums) {
    const Side *left = &job->left, *right = &job->right;
    int64_t f = left->format, g = right->format;
    float a[CHUNK], b[CHUNK];
    uint16_t made_x[CHUNK], made_y[CHUNK];
    if (FN(narrow)(left) && FN(narrow)(right)) {
        p = FN(words)(room, left, p, n, made_x);
        q = FN(words)(room, right, q, n, made_y);
        FN(bf16_sums)(p, q, n / 2, sums);
        if (n % 2) {
            a[0] = as_float((uint32_t)load16(p, n - 1) << 16);
            b[0] = as_float((uint32_t)load16(q, n - 1) << 16);
            FN(float_sums)(a, b, 1, sums);
        }
    } else if (f == FP32 || g == FP32 || f == FP64 || g == FP64) {
        if (f != FP32 || left->scale) FN(values)(room, left, p, n, sx, made_x, a);
        if (g != FP32 || right->scale) FN(values)(room, right, q, n, sy, made_y, b);
        FN(double_sums)(f == FP32 && !left->scale ? p : (const char *)a, g == FP32 && !right->scale ? q : (const char *)b, n, sums);
    } else {
        FN(values)(room, left, p, n, sx, made_x, a);
        FN(values)(room, right, q, n, sy, made_y, b);
        FN(float_sums)(a, b, n, sums);
    }
}

/* How many channels go into float32 sums at once: more of formats that need no memory on the way. */
INLINE int64_t FN(step)(const Side *left, const Side *right) {
    int64_t f = left->format, g = right->format;
    if (left->scale || right->scale) return CHUNK;
    if (f == g && (f == BF16 || f == FP32)) return DIRECT;
#if LANES == 16
    if (f == FP16 && g == FP16) return DIRECT;
#endif
#if defined(TABLES)
    if ((f == FP8_E4M3 || f == FP8_E5M2) && (g == FP8_E4M3 || g == FP8_E5M2)) return DIRECT;
#endif
    return CHUNK;
}

/* The sums over the kept channels of one pair of rows, which lie between the massive ones: those are few. */
TARGET static void FN(row_sums)(const Job *job, const char *x, const char *y, float sx, float sy, const FN(Room) *room, FN(Sums) *sums) {
    int64_t f = job->left.format, g = job->right.format, most = FN(step)(&job->left, &job->right);
    int64_t first = 0, next = 0;
    while (first < job->width) {
        int64_t stop = next < job->massive_count ? job->massive[next] : job->width;
        int64_t n = stop - first < most ? stop - first : most;
        const char *p = x + ITEM[f] * first, *q = y + ITEM[g] * first;
        first += n;
        if (n == 0) {
            first++;
            next++;
        }
#if LANES == 16
        else if (most == DIRECT && f == FP16) FN(half_sums)(p, q, n, sums);
#endif
#if defined(TABLES)
        else if (most == DIRECT && (f == FP8_E4M3 || f == FP8_E5M2))
            FN(fp8_sums)(&room->tables[f == FP8_E5M2], &room->tables[g == FP8_E5M2], p, q, n, room->ahead, sums);
#endif
        else FN(chunk_sums)(job, p, q, n, sx, sy, room, sums);
    }
}

/* The massive channels, which row_sums left out: few, so in float64 and one by one. */
static void FN(add_massive)(const Job *job, const char *x, const char *y, float sx, float sy, FN(Sums) *sums) {
    for (int64_t k = 0; k < job->massive_count; k++) {
        float a, b;
        FN(convert)(&job->left, x, job->massive[k], 1, sx, &a);
        FN(convert)(&job->right, y, job->massive[k], 1, sy, &b);
        double p = a, q = b, d = p - q;
        sums->xx += p * p; sums->yy += q * q; sums->xy += p * q; sums->dd += d * d;
        uint32_t most = as_bits(a - b) & 0x7fffffffu;
        if (most > sums->most) sums->most = most;
    }
}

TARGET static double FN(row_ulp)(const Job *job, const char *x, const char *y, float sx, float sy, FN(Room) *room) {
    int both_bf16 = job->left.format == BF16 && job->right.format == BF16 && !job->left.scale && !job->right.scale;
    if (both_bf16) {
        FN(bf16_steps)(x, y, job->width, room->steps);
    } else {
        FN(convert)(&job->left, x, 0, job->width, sx, room->x);
        FN(convert)(&job->right, y, 0, job->width, sy, room->y);
        FN(steps)(room->x, room->y, job->width, room->steps);
    }
    return FN(median)(room->steps, job->width, &room->guess, room->upper, room->few);
}

/* Not NaN and within what float32 sums of squares can hold. */
static int FN(sound)(double value) { return value >= LEAST && value <= MOST; }

TARGET static int FN(measure)(const Job *job) {
    FN(Room) room;
    if (FN(take)(&room, job)) return 1;
    for (int64_t r = 0; r < job->count; r++) {
        int64_t i = job->left_index[r], j = job->right_index[r];
        const char *x = job->left.rows + i * job->left.stride, *y = job->right.rows + j * job->right.stride;
        float sx = job->left.scale ? job->left.scale[i] : 1, sy = job->right.scale ? job->right.scale[j] : 1;
        double *out = job->sums + r * COLUMNS;
        if (job->want & WANT_HASH) {
            job->hashes[2 * r] = FN(hash_row)(&job->left, x, job->width, sx);
            job->hashes[2 * r + 1] = FN(hash_row)(&job->right, y, job->width, sy);
        }
        FN(Sums) sums = {0, 0, 0, 0, 0};
        FN(row_sums)(job, x, y, sx, sy, &room, &sums);
        out[TXX] = sums.xx; out[TYY] = sums.yy; out[TXY] = sums.xy;
        int kept_sound = !job->massive_count || (FN(sound)(sums.xx) && FN(sound)(sums.yy));
        FN(add_massive)(job, x, y, sx, sy, &sums);
        out[XX] = sums.xx; out[YY] = sums.yy; out[XY] = sums.xy; out[DD] = sums.dd;
        out[MAX_ABS] = (double)as_float(sums.most);
        out[ULP] = 0;
        uint8_t flags = 0;
        if (FN(flat)(&job->left, x, job->width, sx)) flags |= FLAT_LEFT;
        if (FN(flat)(&job->right, y, job->width, sy)) flags |= FLAT_RIGHT;
        int careful = !kept_sound || !FN(sound)(sums.xx) || !FN(sound)(sums.yy) ||
                      !(sums.most == 0 || FN(sound)(sums.dd));
        if (!careful && (job->want & WANT_ULP)) {
            out[ULP] = FN(row_ulp)(job, x, y, sx, sy, &room);
            careful = !(out[ULP] < 3e38);
        }
        if (careful) {
            FN(convert)(&job->left, x, 0, job->width, sx, room.x);
            FN(convert)(&job->right, y, 0, job->width, sy, room.y);
            FN(careful)(job, room.x, room.y, room.doubles, out, &flags);
        }
        job->flags[r] = flags;
    }
    FN(release)(&room);
    return 0;
}

#if !defined(TABLES)
#include "rows_cross.h"
#endif
#undef FN
