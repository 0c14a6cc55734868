/* Calls verbs from a thread that has not called any before, while another thread is within a constructor of dlopen(3), and so holds the
   dynamic loader's lock, and waits for it. */

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define CHECK(that)                                             \
    do {                                                        \
        if (!(that)) {                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #that);  \
            exit(1);                                            \
        }                                                       \
    } while (0)

static sem_t begin, done;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static char buffer[256];

enum { QKEY = 0x1234, GRH = 40, LENGTH = 8 };

static void *sender(void *unused)
{
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = LENGTH, .lkey = mr->lkey };
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
        .wr.ud = { .ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = QKEY },
    }, *bad_wr;
    struct ibv_wc wc;
    int completions = 0;

    (void)unused;
    sem_wait(&begin);
    CHECK(ibv_post_send(qp, &wr, &bad_wr) == 0);
    /* One of the send, one of the receive. */
    while (completions < 2) {
        int polled = ibv_poll_cq(cq, 1, &wc);

        CHECK(polled >= 0 && (polled == 0 || wc.status == IBV_WC_SUCCESS));
        completions += polled;
    }
    sem_post(&done);
    return NULL;
}

/* Called by the library's constructor. */
void constructor(void)
{
    sem_post(&begin);
    sem_wait(&done);
}

int main(int argc, char **argv)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } };
    struct ibv_recv_wr *bad_wr;
    pthread_t thread;

    CHECK(argc == 2 && devices && devices[0]);
    CHECK((context = ibv_open_device(devices[0])) != NULL);
    CHECK((pd = ibv_alloc_pd(context)) != NULL);
    CHECK((mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE)) != NULL);
    CHECK((cq = ibv_create_cq(context, 4, NULL, NULL, 0)) != NULL);

    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    CHECK((qp = ibv_create_qp(pd, &init)) != NULL);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    CHECK(ibv_query_gid(context, 1, 1, &to.grh.dgid) == 0);
    CHECK((ah = ibv_create_ah(pd, &to)) != NULL);

    struct ibv_sge sge = { .addr = (uintptr_t)buffer + 64, .length = GRH + LENGTH, .lkey = mr->lkey };
    struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 };
    CHECK(ibv_post_recv(qp, &receive, &bad_wr) == 0);

    CHECK(sem_init(&begin, 0, 0) == 0 && sem_init(&done, 0, 0) == 0);
    CHECK(pthread_create(&thread, NULL, sender, NULL) == 0);
    CHECK(dlopen(argv[1], RTLD_NOW) != NULL);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memcmp(buffer, buffer + 64 + GRH, LENGTH) == 0);

    CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    ibv_free_device_list(devices);
    return 0;
}
