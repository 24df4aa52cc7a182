/* A stand-in for libnrt: the documented calls over host memory, with a log of them.
 *
 * The "program" is in the NEFF's name (offset 220): "add" gives output0 = input0 + input1 (float32),
 * "swap" output0 = input1 and output1 = input0. The runtime lists tensors in reverse order, so a
 * loader that does not go by their names is caught. STUB_NRT_FAIL names a call that fails, with
 * the status in STUB_NRT_STATUS. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[256]; int usage; size_t size; int dtype; uint32_t *shape; uint32_t ndim; } info_t;
typedef struct { uint64_t tensor_count; info_t tensor_array[]; } infos_t;
typedef struct { size_t size; char *data; } tensor_t;
typedef struct { int count; char names[8][256]; tensor_t *tensors[8]; } set_t;
typedef struct { char name[64]; } model_t;

static char calls[65536];
static int started, models, tensors, sets, infos;

static void note(const char *call) {
    if (strlen(calls) + strlen(call) + 2 < sizeof calls) { strcat(calls, call); strcat(calls, " "); }
}
static int fails(const char *call) {
    const char *which = getenv("STUB_NRT_FAIL"), *status = getenv("STUB_NRT_STATUS");
    note(call);
    if (!which || strcmp(which, call)) return started || !strcmp(call, "nrt_init") ? 0 : 13;
    return status ? atoi(status) : 1;
}

const char *stub_calls(void) { return calls; }
void stub_reset(void) { calls[0] = 0; }
int stub_live(void) { return models + tensors + sets + infos + started; }

int nrt_init(int framework, const char *fw, const char *fal) {
    int status = fails("nrt_init");
    (void)fw; (void)fal;
    if (status) return status;
    if (framework != 1) return 2;
    started = 1;
    return 0;
}
void nrt_close(void) { note("nrt_close"); started = 0; }

int nrt_load(const void *neff, size_t size, int32_t vnc, int32_t count, model_t **model) {
    int status = fails("nrt_load");
    if (status) return status;
    if (size < 1024 || vnc != -1 || count != -1) return 2;
    *model = calloc(1, sizeof(model_t));
    strncpy((*model)->name, (const char *)neff + 220, 63);
    models++;
    return 0;
}
int nrt_unload(model_t *model) { int s = fails("nrt_unload"); if (s) return s; free(model); models--; return 0; }

static void describe(info_t *info, const char *name, int usage) {
    strcpy(info->name, name);
    info->usage = usage;
    info->dtype = 1;
    info->ndim = 2;
    info->shape = malloc(2 * sizeof(uint32_t));
    info->shape[0] = 2;
    info->shape[1] = 3;
    info->size = 24;
}
int nrt_get_model_tensor_info(model_t *model, infos_t **result) {
    int status = fails("nrt_get_model_tensor_info"), outputs = strcmp(model->name, "swap") ? 1 : 2;
    if (status) return status;
    *result = calloc(1, sizeof(infos_t) + 4 * sizeof(info_t));
    (*result)->tensor_count = 2 + outputs;
    if (outputs == 2) describe(&(*result)->tensor_array[3], "output0", 1);
    describe(&(*result)->tensor_array[0], "input1", 0);
    describe(&(*result)->tensor_array[1], outputs == 2 ? "output1" : "output0", 1);
    describe(&(*result)->tensor_array[2], "input0", 0);
    infos++;
    return 0;
}
int nrt_free_model_tensor_info(infos_t *result) {
    note("nrt_free_model_tensor_info");
    for (uint64_t i = 0; i < result->tensor_count; i++) free(result->tensor_array[i].shape);
    free(result);
    infos--;
    return 0;
}

int nrt_tensor_allocate(int placement, int vnc, size_t size, const char *name, tensor_t **tensor) {
    int status = fails("nrt_tensor_allocate");
    (void)name;
    if (status) return status;
    if (placement != 0 || vnc != 0) return 2;
    *tensor = malloc(sizeof(tensor_t));
    (*tensor)->size = size;
    (*tensor)->data = calloc(1, size);
    tensors++;
    return 0;
}
void nrt_tensor_free(tensor_t **tensor) {
    note("nrt_tensor_free");
    free((*tensor)->data);
    free(*tensor);
    *tensor = NULL;
    tensors--;
}
int nrt_tensor_write(tensor_t *tensor, const void *data, size_t offset, size_t size) {
    int status = fails("nrt_tensor_write");
    if (status) return status;
    if (offset + size > tensor->size) return 2;
    memcpy(tensor->data + offset, data, size);
    return 0;
}
int nrt_tensor_read(const tensor_t *tensor, void *data, size_t offset, size_t size) {
    int status = fails("nrt_tensor_read");
    if (status) return status;
    if (offset + size > tensor->size) return 2;
    memcpy(data, tensor->data + offset, size);
    return 0;
}

int nrt_allocate_tensor_set(set_t **set) {
    int status = fails("nrt_allocate_tensor_set");
    if (status) return status;
    *set = calloc(1, sizeof(set_t));
    sets++;
    return 0;
}
void nrt_destroy_tensor_set(set_t **set) {
    note("nrt_destroy_tensor_set");
    free(*set);
    *set = NULL;
    sets--;
}
int nrt_add_tensor_to_tensor_set(set_t *set, const char *name, tensor_t *tensor) {
    int status = fails("nrt_add_tensor_to_tensor_set");
    if (status) return status;
    strcpy(set->names[set->count], name);
    set->tensors[set->count++] = tensor;
    return 0;
}

static tensor_t *named(const set_t *set, const char *name) {
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->names[i], name)) return set->tensors[i];
    return NULL;
}
int nrt_execute(model_t *model, const set_t *in, set_t *out) {
    int status = fails("nrt_execute");
    tensor_t *a = named(in, "input0"), *b = named(in, "input1"), *r = named(out, "output0");
    if (status) return status;
    if (!a || !b || !r) return 1002;
    if (!strcmp(model->name, "swap")) {
        tensor_t *second = named(out, "output1");
        if (!second) return 1002;
        memcpy(r->data, b->data, b->size);
        memcpy(second->data, a->data, a->size);
        return 0;
    }
    for (size_t i = 0; i < r->size / sizeof(float); i++)
        ((float *)r->data)[i] = ((float *)a->data)[i] + ((float *)b->data)[i];
    return 0;
}
