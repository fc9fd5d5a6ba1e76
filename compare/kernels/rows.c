/* One pass over pairs of rows of hidden states, whatever they are stored in, without a float32 copy of them.
 *
 * Built ahead as a plain shared library (no Python header is needed) and called through ctypes, which lets other
 * threads run meanwhile. The loops are written so that a compiler vectorises them; they are compiled once per
 * instruction set and chosen when the library is loaded. The plain definition of every number is
 * compare/measure.py: measure_block; tests hold the two together.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#else
#define EXPORT
#define INLINE static inline
#endif

enum { BF16, FP16, FP32, FP64, FP8_E4M3, FP8_E5M2, FORMATS };
enum { XX, YY, XY, DD, TXX, TYY, TXY, MAX_ABS, ULP, COLUMNS };
enum { NAN_LEFT = 1, NAN_RIGHT = 2, ZERO_LEFT = 4, ZERO_RIGHT = 8, FLAT_LEFT = 16, FLAT_RIGHT = 32 };
enum { WANT_ULP = 1, WANT_HASH = 2 };

/* One side: where its first row is, the bytes from row to row, its number format, and one factor per row or NULL. */
typedef struct {
    const char *rows;
    int64_t stride;
    const float *scale;
    int64_t format;
} Side;

/* What is to be measured. left_index, right_index: count row numbers each. massive: sorted channels that the trimmed
 * sums leave out. sums [count][COLUMNS], flags [count], hashes [count][2] (only with WANT_HASH). */
typedef struct {
    Side left, right;
    int64_t width, count, massive_count, want;
    const int64_t *left_index, *right_index, *massive;
    double *sums;
    uint8_t *flags;
    uint64_t *hashes;
} Job;

/* Channels that are summed in float32 before the sums go on in float64. */
#define CHUNK 1024
/* The same of formats that need no memory on the way: fewer ends of sums, each lane of which still adds few values. */
#define DIRECT 4096
/* Bytes that are asked for ahead of a chunk that is converted first. */
#define AHEAD 4096
/* Outside of these a float32 sum of squares has overflowed or lost digits to underflow: the row is done again. */
#define LEAST 1e-24
#define MOST 1e37

static const int64_t ITEM[FORMATS] = {2, 2, 4, 8, 1, 1};

INLINE float as_float(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE uint32_t as_bits(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE uint16_t load16(const char *p, int64_t i) { uint16_t v; memcpy(&v, p + 2 * i, 2); return v; }
INLINE uint32_t load32(const char *p, int64_t i) { uint32_t v; memcpy(&v, p + 4 * i, 4); return v; }
INLINE uint64_t load64(const char *p, int64_t i) { uint64_t v; memcpy(&v, p + 8 * i, 8); return v; }
INLINE float load_float(const char *p, int64_t i) { return as_float(load32(p, i)); }
INLINE double load_double(const char *p, int64_t i) { double v; memcpy(&v, p + 8 * i, 8); return v; }

/* fp16 to float32. Subnormals go by way of a difference of normals: no slow path of the processor is met. */
INLINE float half_value(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu, exponent = h & 0x7c00u;
    uint32_t normal = (rest << 13) + (112u << 23) + (exponent == 0x7c00u ? 112u << 23 : 0);
    float tiny = as_float((rest << 13) + (113u << 23)) - as_float(113u << 23);
    uint32_t bits = exponent == 0 ? as_bits(tiny) : normal;
    return as_float(bits | sign);
}

/* fp8 e4m3fn to float32: no infinities, one NaN per sign. */
INLINE float e4m3_value(uint32_t b) {
    uint32_t sign = (b & 0x80u) << 24, rest = b & 0x7fu;
    uint32_t normal = rest == 0x7fu ? 0x7fc00000u : (rest << 20) + (120u << 23);
    float tiny = as_float((rest << 20) + (121u << 23)) - as_float(121u << 23);
    uint32_t bits = (rest & 0x78u) == 0 ? as_bits(tiny) : normal;
    return as_float(bits | sign);
}

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)

/* 16-bit floats by the processor's own instruction, LANES at a time; what is left over goes one by one. */
#define LEVEL plain
#define TARGET
#define LANES 1
#include "rows_body.h"
#undef LEVEL
#undef TARGET
#undef LANES

#if defined(__x86_64__) && defined(__GNUC__)
#define LEVEL avx2
#define TARGET __attribute__((target("avx2,fma,bmi,bmi2,f16c")))
#define LANES 8
#include "rows_body.h"
#undef LEVEL
#undef TARGET
#undef LANES

#define LEVEL avx512
#define LANES 16
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,bmi,bmi2,f16c"
#if defined(__clang__)
#define WIDE AVX512
#else
#define WIDE AVX512 ",prefer-vector-width=512"
#endif
#define TARGET __attribute__((target(WIDE)))
#include "rows_body.h"
#undef LEVEL
#undef TARGET

/* Bytes of a row to ask for ahead where its values stay in registers. Intel's cores stand still without it, by a factor of
 * two; Zen 4 asks by itself, and is slower where it is told to (bench/NOTES.md). */
static int64_t bytes_ahead(void) { return __builtin_cpu_is("intel") ? AHEAD : 0; }

/* The same with a look-up of 64 bytes in tables of 128: fp8 values. */
#define LEVEL vbmi
#define TARGET __attribute__((target(WIDE ",avx512vbmi")))
#define TABLES
#include "rows_body.h"
#undef LEVEL
#undef TARGET

/* The same with sums of products of bf16 values. */
#define LEVEL dots
#define TARGET __attribute__((target(WIDE ",avx512vbmi,avx512bf16")))
#define DOTS
#include "rows_body.h"
#undef LEVEL
#undef TARGET
#undef LANES
#undef TABLES
#undef DOTS
#endif

/* The best instruction set of this machine: 0 plain, 1 AVX2, 2 AVX-512, 3 with byte look-ups, 4 with bf16 products. */
EXPORT int drafttrace_level(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("bmi2"))
        return !__builtin_cpu_supports("avx512vbmi") ? 2 : __builtin_cpu_supports("avx512bf16") ? 4 : 3;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
    return 0;
}

/* Size of a Job, so that a caller with another idea of it is found out before anything is read. */
EXPORT int64_t drafttrace_job_size(void) { return (int64_t)sizeof(Job); }

/* 0 when done, 1 where memory is short, 2 for a job that makes no sense. level: as drafttrace_level, or lower. */
EXPORT int drafttrace_measure(const Job *job, int level) {
    if (job->width < 1 || job->count < 0 || job->left.format < 0 || job->left.format >= FORMATS ||
        job->right.format < 0 || job->right.format >= FORMATS || level > drafttrace_level())
        return 2;
#if defined(__x86_64__) && defined(__GNUC__)
    if (level == 4) return measure_dots(job);
    if (level == 3) return measure_vbmi(job);
    if (level == 2) return measure_avx512(job);
    if (level == 1) return measure_avx2(job);
#endif
    return measure_plain(job);
}

/* hashes [count] of rows without anything else; 0 when done. */
EXPORT int drafttrace_hash(const Side *side, int64_t width, int64_t count, const int64_t *index, uint64_t *hashes, int level) {
    if (width < 1 || count < 0 || side->format < 0 || side->format >= FORMATS || level > drafttrace_level()) return 2;
#if defined(__x86_64__) && defined(__GNUC__)
    if (level == 4) { hash_rows_dots(side, width, count, index, hashes); return 0; }
    if (level == 3) { hash_rows_vbmi(side, width, count, index, hashes); return 0; }
    if (level == 2) { hash_rows_avx512(side, width, count, index, hashes); return 0; }
    if (level == 1) { hash_rows_avx2(side, width, count, index, hashes); return 0; }
#endif
    hash_rows_plain(side, width, count, index, hashes);
    return 0;
}

/* For every row from start to stop: its inner products in nx streams with the same row in ny streams, out [stop - start][nx][ny],
 * zeroed. See cross() in rows_cross.h. 0 when done, 1 where memory is short, 2 for a job that makes no sense. */
EXPORT int drafttrace_cross(const Side *xs, int64_t nx, const Side *ys, int64_t ny, int64_t start, int64_t stop, int64_t width, double *out, int level) {
    if (nx < 1 || ny < 1 || start < 0 || stop < start || width < 1 || level > drafttrace_level()) return 2;
    for (int64_t s = 0; s < nx + ny; s++) {
        int64_t format = (s < nx ? xs[s] : ys[s - nx]).format;
        if (format < 0 || format >= FORMATS) return 2;
    }
#if defined(__x86_64__) && defined(__GNUC__)
    if (level >= 2) return cross_avx512(xs, nx, ys, ny, start, stop, width, out);
    if (level == 1) return cross_avx2(xs, nx, ys, ny, start, stop, width, out);
#endif
    return cross_plain(xs, nx, ys, ny, start, stop, width, out);
}
