/* Loads a library, closes it again, has other memory where it was, and opens the first device.
 *
 *     closes_library LIBRARY
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <sys/mman.h>

int main(int count, char **words)
{
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!library || dlclose(library))
        return puts(dlerror()), 1;
    for (int nth = 0; nth < 64; nth++)
        if (mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return puts("no memory"), 1;
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    if (!context || ibv_close_device(context))
        return puts("no device"), 2;
    return 0;
}
