/* What libmlx5 says of the first device: its ids, and that it has no direct verbs. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdio.h>

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
	int refused = mlx5dv_query_device(context, &direct);
	printf("%s: %#x %u, direct verbs %d, %s\n", ibv_get_device_name(devices[0]), attr.vendor_id, attr.vendor_part_id,
	       mlx5dv_is_supported(devices[0]), refused == EOPNOTSUPP ? "EOPNOTSUPP" : refused ? "another" : "0");
	ibv_close_device(context);
	ibv_free_device_list(devices);
	return 0;
}
