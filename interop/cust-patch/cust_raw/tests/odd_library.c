/* A libcuda that returns and stores numbers that CUDA 11.4 does not define. */
#include <stddef.h>

int cuInit(unsigned flags) { return flags == 0 ? 912 : 100; }

int cuStreamIsCapturing(void *stream, int *status) {
    *status = stream == NULL ? 1 : 77;
    return 0;
}

/* width, height, depth, format, channels, flags */
struct array3d { size_t size[3]; int format; unsigned channels, flags; };

int cuArray3DGetDescriptor_v2(struct array3d *to, void *array) {
    *to = (struct array3d){{4, 5, 6}, array == NULL ? 0x20 : 0xabc, 1, 0};
    return 0;
}

/* type, and the linear member: address, format, channels, bytes */
struct resource { int type; void *address; int format; unsigned channels; size_t bytes, more[12]; };

int cuTexObjectGetResourceDesc(struct resource *to, unsigned long long object) {
    *to = (struct resource){object == 1 ? 9 : 2, NULL, object == 2 ? 0xabc : 1, 1, 64, {0}};
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == 100 ? "no device" : NULL;
    return error == 100 ? 0 : 1;
}
