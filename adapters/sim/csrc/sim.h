/* The simulated accelerator: what its parts share. See README.md for what it simulates and why. */
#ifndef SIM_H
#define SIM_H

#include "vllm_adapter.h"

#define SIM_DEVICES 2
#define SIM_ALIGNMENT 384u                         /* odd on purpose: no power of two */
#define SIM_HEAP ((uint64_t)8388608 * SIM_ALIGNMENT) /* 3 GiB of address space a device */
#define SIM_SUBGROUP 48
#define SIM_UNITS 7
#define SIM_MAX_GRID 2047
#define SIM_KV_BLOCK 24
#define SIM_POISON 0xA5
#define SIM_DTYPES (VA_DTYPE_BIT(VA_FLOAT32) | VA_DTYPE_BIT(VA_FLOAT16))

/* error.c: the sentence behind a status, one for each thread */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
va_status sim_fail(va_status status, const char *format, ...);
const char *sim_last_error(void);

/* heap.c: addresses that the host cannot follow, and the chip's own view of the same bytes */
va_status sim_open(int32_t device);
int32_t sim_in_bad_fork(void);
va_status sim_usable(int32_t device); /* in range, opened, not forked, not lost */
va_status sim_allocate(int32_t device, uint64_t size, uint64_t alignment, va_managed_tensor **out);
va_status sim_memory_info(int32_t device, uint64_t *free_bytes, uint64_t *total_bytes);
va_status sim_memory_stats(int32_t device, va_memory_stats *stats);
void sim_count_link(int32_t device, uint64_t bytes);
/* The chip's view of [address, address + size) if it lies in one live block of the device. */
char *sim_chip(int32_t device, const void *address, uint64_t size);
/* As sim_chip for every byte that a tensor's strides reach; NULL where it is not wholly there. */
char *sim_view(const va_tensor *tensor);

/* queue.c: streams and events; one worker thread a device */
typedef va_status (*sim_work)(void *arguments);
#define SIM_WORK_BYTES 1024
va_status sim_enqueue(int32_t device, va_stream stream, sim_work work, const void *arguments,
                      size_t size);
va_status sim_stream_create(int32_t device, va_stream *stream);
va_status sim_stream_destroy(int32_t device, va_stream stream);
va_status sim_stream_synchronize(int32_t device, va_stream stream);
va_status sim_stream_wait_event(int32_t device, va_stream stream, va_event event);
va_status sim_event_create(int32_t device, va_event *event);
va_status sim_event_destroy(int32_t device, va_event event);
va_status sim_event_record(int32_t device, va_stream stream, va_event event);
va_status sim_event_query(int32_t device, va_event event);
va_status sim_event_synchronize(int32_t device, va_event event);
va_status sim_event_elapsed(int32_t device, va_event start, va_event end, double *milliseconds);
void sim_prepare_queues(void);
/* Tickets number the work of all streams of all devices, since one device reads another's. */
uint64_t sim_ticket(void);         /* of the work queued last */
uint64_t sim_oldest_pending(void); /* of the oldest work that is not done; UINT64_MAX: none */
void sim_wait_passed(uint64_t ticket);

/* faults.c: faults on request, from the variable SIM_FAULT */
typedef enum { SIM_FAULT_OOM, SIM_FAULT_LOST, SIM_FAULT_LAUNCH, SIM_FAULT_SLOW, SIM_FAULT_CORRUPT,
               SIM_FAULTS } sim_fault;
va_status sim_fault_plan(void); /* VA_OK, or what is wrong with the variables */
int sim_due(sim_fault fault); /* counts a chance for it; whether it strikes now */
int64_t sim_slow_milliseconds(void);
int64_t sim_latency_microseconds(void);
int sim_is_lost(int32_t device);
void sim_lose(int32_t device);

/* copy.c */
va_status sim_copy_to_device(int32_t device, va_stream stream, void *to, const void *from,
                             uint64_t size);
va_status sim_copy_to_host(int32_t device, va_stream stream, void *to, const void *from,
                           uint64_t size);
va_status sim_copy_on_device(va_stream stream, int32_t to_device, void *to, int32_t from_device,
                             const void *from, uint64_t size);
va_status sim_allocate_pinned(uint64_t size, uint64_t alignment, void **out);
va_status sim_free_pinned(void *memory);

/* launch.c: work groups. A grid above SIM_MAX_GRID is refused, so that kernels have to tile. */
typedef void (*sim_group)(const void *arguments, int64_t group);
va_status sim_launch(int64_t groups, sim_group body, const void *arguments);
/* As many launches as it takes. */
va_status sim_launch_all(int64_t groups, sim_group body, const void *arguments);
/* Sum of SIM_SUBGROUP lanes, as the chip's subgroup instruction adds them. */
float sim_subgroup_sum(const float *lanes);

/* values.c: elements of any dtype */
size_t sim_size_of(va_dtype dtype);
int sim_is_float(va_dtype dtype);
float sim_load(const char *at, va_dtype dtype); /* float32 and float16 */
void sim_store(char *at, va_dtype dtype, float value);
int64_t sim_load_integer(const char *at, va_dtype dtype);
void sim_store_integer(char *at, va_dtype dtype, int64_t value);
double sim_load_any(const char *at, va_dtype dtype);
void sim_store_any(char *at, va_dtype dtype, double value);
int64_t sim_whole(double value); /* towards zero; what no int64 is gives INT64_MIN */

/* check.c: arguments, before anything is queued */
int sim_is_none(const va_tensor *tensor);
va_status sim_check(const char *what, const va_tensor *tensor, int32_t device, int32_t ndim);
/* As sim_check, for a tensor that is written. */
va_status sim_check_out(const char *what, const va_tensor *tensor, int32_t device, int32_t ndim);
int64_t sim_count(const va_tensor *tensor);
int64_t sim_rows(const va_tensor *tensor); /* all dimensions but the last */
/* The bytes at which row number `row` of all dimensions but the last begins. */
char *sim_row(char *base, const va_tensor *tensor, int64_t row);
va_status sim_same_shape(const char *what, const va_tensor *a, const va_tensor *b);
va_status sim_floating(const char *what, const va_tensor *tensor);

/* kernels */
va_status sim_linear(const va_linear_args *args);
va_status sim_rms_norm(const va_rms_norm_args *args);
va_status sim_fused_add_rms_norm(const va_fused_add_rms_norm_args *args);
va_status sim_layer_norm(const va_layer_norm_args *args);
va_status sim_silu_and_mul(const va_gated_args *args);
va_status sim_gelu(const va_gelu_args *args);
va_status sim_gelu_and_mul(const va_gated_args *args);
va_status sim_embedding(const va_embedding_args *args);
va_status sim_rotary_embedding(const va_rotary_embedding_args *args);
va_status sim_reshape_and_cache(const va_reshape_and_cache_args *args);
va_status sim_paged_attention(const va_paged_attention_args *args);
va_status sim_attention(const va_attention_args *args);
va_status sim_unary(const va_unary_args *args);
va_status sim_binary(const va_binary_args *args);
va_status sim_reduce(const va_reduce_args *args);
va_status sim_where(const va_where_args *args);
va_status sim_index(const va_index_args *args);
va_status sim_gather(const va_gather_args *args);
va_status sim_matmul(const va_matmul_args *args);
va_status sim_fill(const va_fill_args *args);

#endif
