/* Numbers that a seed decides, and lines of the trace. */
#include "differential.h"

#include <stdarg.h>

uint64_t random_next(struct random *random)
{
	uint64_t z = (random->state += 0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

uint32_t below(struct random *random, uint32_t limit)
{
	return limit ? random_next(random) % limit : 0;
}

bool chance(struct random *random, uint32_t percent)
{
	return below(random, 100) < percent;
}

struct random stream(uint64_t seed, uint64_t step)
{
	struct random random = { seed * 0xd1342543de82ef95 + step };

	random_next(&random);
	return random;
}

void tell(FILE *out, const char *key, const char *value, ...)
{
	va_list arguments;

	fprintf(out, "%s\t", key);
	va_start(arguments, value);
	vfprintf(out, value, arguments);
	va_end(arguments);
	fputc('\n', out);
}

const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_SUCCESS] = "SUCCESS",
		[IBV_WC_LOC_LEN_ERR] = "LOC_LEN_ERR",
		[IBV_WC_LOC_QP_OP_ERR] = "LOC_QP_OP_ERR",
		[IBV_WC_LOC_PROT_ERR] = "LOC_PROT_ERR",
		[IBV_WC_WR_FLUSH_ERR] = "WR_FLUSH_ERR",
		[IBV_WC_MW_BIND_ERR] = "MW_BIND_ERR",
		[IBV_WC_BAD_RESP_ERR] = "BAD_RESP_ERR",
		[IBV_WC_LOC_ACCESS_ERR] = "LOC_ACCESS_ERR",
		[IBV_WC_REM_INV_REQ_ERR] = "REM_INV_REQ_ERR",
		[IBV_WC_REM_ACCESS_ERR] = "REM_ACCESS_ERR",
		[IBV_WC_REM_OP_ERR] = "REM_OP_ERR",
		[IBV_WC_RETRY_EXC_ERR] = "RETRY_EXC_ERR",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR_RETRY_EXC_ERR",
		[IBV_WC_FATAL_ERR] = "FATAL_ERR",
		[IBV_WC_GENERAL_ERR] = "GENERAL_ERR",
	};
	const char *name = (unsigned int)status < sizeof(names) / sizeof(*names) ? names[status] : NULL;

	return name ? name : "another status";
}

/* FNV-1a of the bytes that are defined, and of which these are. */
uint64_t hash(const uint8_t *bytes, const uint8_t *undefined, size_t length)
{
	uint64_t sum = 0xcbf29ce484222325;

	for (size_t at = 0; at < length; at++)
		sum = (sum ^ (undefined[at] ? 0x100 : bytes[at])) * 0x100000001b3;
	return sum;
}
