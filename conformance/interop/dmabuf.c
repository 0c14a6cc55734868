/*
 * A dma-buf of the driver vgem, whose memory a program may map, as that of a GPU's driver that allows it: registered by ibv_reg_dmabuf_mr,
 * written by RDMA WRITE and read by RDMA READ of a queue pair that is connected with itself, compared through vgem's own mapping. One that
 * may not be mapped for writing is refused.
 *
 *     dmabuf DEVICE GID_INDEX        prints `written, read, refused: Permission denied` or the like
 */
#include "../differential/bugs/bugs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of drm/drm.h and drm/drm_mode.h, which Debian has in a package of their own. */
struct create_dumb { uint32_t height, width, bpp, flags, handle, pitch; uint64_t size; };
struct map_dumb { uint32_t handle, pad; uint64_t offset; };
struct prime_handle { uint32_t handle, flags; int32_t fd; };
#define CREATE_DUMB _IOWR('d', 0xb2, struct create_dumb)
#define MAP_DUMB _IOWR('d', 0xb3, struct map_dumb)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)

enum { OFFSET = 4096 + 128, LENGTH = 40000, IOVA = 0x70000080 };
static unsigned char memory[2 * LENGTH];

#define CHECK(x) do { if (!(x)) { printf("line %d: %s: %m\n", __LINE__, #x); return 1; } } while (0)

/* The first DRM device that makes buffers: in the guest there is vgem alone. */
static int open_vgem(struct create_dumb *buffer)
{
	char path[32];

	for (int i = 0; i < 8; i++) {
		snprintf(path, sizeof(path), "/dev/dri/card%d", i);
		int fd = open(path, O_RDWR | O_CLOEXEC);

		if (fd >= 0 && !ioctl(fd, CREATE_DUMB, buffer))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

static int complete(struct ibv_qp *qp, struct ibv_cq *cq, enum ibv_wr_opcode opcode, void *at, uint32_t lkey, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)at, LENGTH, lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { IOVA, rkey } }, *bad;
	struct ibv_wc wc;

	if (ibv_post_send(qp, &wr, &bad))
		return 1;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc.status;
}

int main(int argc, char **argv)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct create_dumb buffer = { .width = 256, .height = 64, .bpp = 32 };
	struct ibv_context *context = argc == 3 ? open_named(argv[1]) : NULL;
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr access = { .qp_access_flags = all };

	CHECK(context);
	int drm = open_vgem(&buffer);
	CHECK(drm >= 0);
	struct map_dumb map = { .handle = buffer.handle };
	CHECK(!ioctl(drm, MAP_DUMB, &map));
	unsigned char *pixels = mmap(NULL, buffer.size, PROT_READ | PROT_WRITE, MAP_SHARED, drm, map.offset);
	CHECK(pixels != MAP_FAILED && buffer.size >= OFFSET + LENGTH + 128);
	struct prime_handle writable = { .handle = buffer.handle, .flags = O_CLOEXEC | O_RDWR };
	CHECK(!ioctl(drm, PRIME_HANDLE_TO_FD, &writable));

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = init.send_cq = init.recv_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *dmabuf = ibv_reg_dmabuf_mr(pd, OFFSET, LENGTH, IOVA, writable.fd, all);
	CHECK(qp && mr && dmabuf && !connect_with_itself(qp, argv[2]));
	CHECK(!ibv_modify_qp(qp, &access, IBV_QP_ACCESS_FLAGS));
	for (int i = 0; i < LENGTH; i++)
		memory[i] = i * 7 + i / 256;
	CHECK(!complete(qp, cq, IBV_WR_RDMA_WRITE, memory, mr->lkey, dmabuf->rkey));
	CHECK(!memcmp(pixels + OFFSET, memory, LENGTH) && !pixels[OFFSET - 1] && !pixels[OFFSET + LENGTH]);
	for (int i = 0; i < LENGTH; i++)
		pixels[OFFSET + i] ^= 0x5a;
	CHECK(!complete(qp, cq, IBV_WR_RDMA_READ, memory + LENGTH, mr->lkey, dmabuf->rkey));
	CHECK(!memcmp(pixels + OFFSET, memory + LENGTH, LENGTH));
	CHECK(!ibv_dereg_mr(dmabuf));

	struct create_dumb other = { .width = 64, .height = 64, .bpp = 32 };
	CHECK(!ioctl(drm, CREATE_DUMB, &other));
	struct prime_handle readable = { .handle = other.handle, .flags = O_CLOEXEC };
	CHECK(!ioctl(drm, PRIME_HANDLE_TO_FD, &readable));
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, readable.fd, all));
	printf("written, read, refused: %m\n");
	return 0;
}
