/* What libmlx5 says of the first device: its ids, and that it has no direct verbs, not even for the source port of a queue pair. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdio.h>

static const char *name(int error)
{
	return error == EOPNOTSUPP ? "EOPNOTSUPP" : error ? "another" : "0";
}

int main(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	if (!devices || count == 0)
		return 1;
	struct ibv_context *context = ibv_open_device(devices[0]);
	if (!context)
		return 2;
	struct ibv_device_attr attr;
	if (ibv_query_device(context, &attr))
		return 3;
	struct mlx5dv_context direct = { 0 };
	int query = mlx5dv_query_device(context, &direct);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	if (!pd || !cq)
		return 4;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return 5;
	int port = mlx5dv_modify_qp_udp_sport(qp, 0xC123);
	printf("%s: %#x %u, direct verbs %d, %s, %s\n", ibv_get_device_name(devices[0]), attr.vendor_id, attr.vendor_part_id,
	       mlx5dv_is_supported(devices[0]), name(query), name(port));
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(devices);
	return 0;
}
