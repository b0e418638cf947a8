/* Follows a device address on the host. It must end here, by SIGSEGV. */
#include "harness.h"

int main(void) {
  begin();
  va_managed_tensor *a;
  OK(api->allocate(0, 64, 0, &a));
  printf("%d\n", *(volatile char *)a->tensor.data);
  return 0;
}
