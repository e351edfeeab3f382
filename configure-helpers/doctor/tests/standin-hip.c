// The functions of libamdhip64 that the doctor calls. The test puts definitions before this text:
// COUNT, VERSION, FAILING and CODE: the function that fails and its return value.
#include <stdio.h>
#include <string.h>

#define RETURN(name, code) return strcmp(FAILING, name) ? (code) : CODE

int hipRuntimeGetVersion(int *version) {
    *version = VERSION;
    RETURN("hipRuntimeGetVersion", 0);
}
const char *hipGetErrorName(int code) { return code == 100 ? "hipErrorNoDevice" : "hipErrorUnknown"; }
int hipGetDeviceCount(int *count) {
    *count = COUNT;
    RETURN("hipGetDeviceCount", 0);
}
int hipDeviceGetName(char *name, int length, int device) {
    snprintf(name, length, "AMD Instinct MI300X");
    RETURN("hipDeviceGetName", device < COUNT ? 0 : 101);
}
int hipDeviceTotalMem(size_t *bytes, int device) {
    *bytes = 196592ul << 20;
    RETURN("hipDeviceTotalMem", 0);
}
int hipDeviceGetPCIBusId(char *id, int length, int device) {
    snprintf(id, length, "0000:%02X:00.0", 0xc1 + device);
    RETURN("hipDeviceGetPCIBusId", 0);
}
int hipDeviceGetAttribute(int *value, unsigned attribute, int device) {
    *value = attribute == 63 ? 304 : attribute == 10011 || attribute == 10013 || attribute == 10016;
    RETURN("hipDeviceGetAttribute", 0);
}
// The architecture is at another place in each layout.
int hipGetDevicePropertiesR0600(char *properties, int device) {
    strcpy(properties + 1160, "gfx942:sramecc+:xnack-");
    RETURN("hipGetDevicePropertiesR0600", 0);
}
