// The functions of libcuda that the doctor calls. The test puts definitions before this text:
// COUNT, names, attribute(), and FAILING and CODE: the function that fails and its return value, or
// "version" and the version to report.
#include <stdio.h>
#include <string.h>

#define RETURN(name, code) return strcmp(FAILING, name) ? (code) : CODE

int cuInit(unsigned flags) { RETURN("cuInit", flags ? 1 : 0); }
int cuDriverGetVersion(int *version) {
    *version = strcmp(FAILING, "version") ? 13000 : CODE;
    RETURN("cuDriverGetVersion", 0);
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 4711 ? "CUDA_ERROR_OF_THE_FUTURE" : 0;
    return *name ? 0 : 1;
}
int cuDeviceGetCount(int *count) {
    *count = COUNT;
    RETURN("cuDeviceGetCount", 0);
}
int cuDeviceGet(int *device, int index) {
    *device = 100 + index;
    RETURN("cuDeviceGet", index < COUNT ? 0 : 101);
}
int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, length, "%s", names[device - 100]);
    RETURN("cuDeviceGetName", 0);
}
int cuDeviceGetAttribute(int *value, unsigned a, int device) {
    // The newest attribute of a driver of this version.
    if (a > 147) return 1;
    *value = attribute(device - 100, a);
    RETURN("cuDeviceGetAttribute", 0);
}
int cuDeviceGetPCIBusId(char *id, int length, int device) {
    snprintf(id, length, "0000:%02X:00.0", 0x1b + device - 100);
    RETURN("cuDeviceGetPCIBusId", 0);
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = 143771ul << 20;
    RETURN("cuDeviceTotalMem_v2", 0);
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = strcmp(FAILING, "peers") && device != peer;
    RETURN("cuDeviceCanAccessPeer", 0);
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = 16 * (device - 100) + i;
    RETURN("cuDeviceGetUuid_v2", 0);
}
