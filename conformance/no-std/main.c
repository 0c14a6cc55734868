// Runs the library: exit status 0 if everything arrived.
#include <stdio.h>

int urxe_two_queue_pairs(void);

int main(void) {
    int step = urxe_two_queue_pairs();
    printf(step ? "step %d failed\n" : "every message arrived\n", step);
    return step != 0;
}
