# A guest without an operating system: writes to memory as long as it runs. Each round adds one to a word of each page from 16 MiB to 80 MiB,
# and to the count of rounds at 1 MiB + 0x80000. Multiboot, for `qemu -kernel`.
        .section .text
        .long 0x1BADB002, 0, -0x1BADB002
        .globl _start
_start:
        cli
again:
        mov $0x1000000, %edi
page:
        incl (%edi)
        mov %edi, 2048(%edi)
        add $4096, %edi
        cmp $0x5000000, %edi
        jb page
        incl 0x180000
        jmp again
