//! The verbs that can be made to fail: those that reach a provider.

/// Names of verbs without `ibv_`, and without the `_ex` of those that a program may call either way.
const NAMES: &[&str] = &[
    "advise_mr",
    "alloc_dm",
    "alloc_mw",
    "alloc_null_mr",
    "alloc_parent_domain",
    "alloc_pd",
    "alloc_td",
    "attach_mcast",
    "bind_mw",
    "close_device",
    "close_xrcd",
    "create_ah",
    "create_cq",
    "create_qp",
    "create_srq",
    "dealloc_mw",
    "dealloc_pd",
    "dealloc_td",
    "dereg_mr",
    "destroy_ah",
    "destroy_cq",
    "destroy_qp",
    "destroy_srq",
    "detach_mcast",
    "free_dm",
    "get_srq_num",
    "import_context",
    "import_dm",
    "import_mr",
    "import_pd",
    "memcpy_from_dm",
    "memcpy_to_dm",
    "modify_cq",
    "modify_qp",
    "modify_srq",
    "next_poll",
    "open_device",
    "open_qp",
    "open_xrcd",
    "poll_cq",
    "post_recv",
    "post_send",
    "post_srq_recv",
    "query_device",
    "query_port",
    "query_qp",
    "query_rt_values",
    "query_srq",
    "reg_dm_mr",
    "reg_dmabuf_mr",
    "reg_mr",
    "req_notify_cq",
    "rereg_mr",
    "resize_cq",
    "start_poll",
    "wr_complete",
];

/// The name by which a script knows a verb.
pub(crate) fn plain(verb: &str) -> &str {
    let name = verb.strip_prefix("ibv_").unwrap_or(verb);
    name.strip_suffix("_ex").unwrap_or(name)
}

/// Whether there is such a verb, by its plain name.
pub(crate) fn is_one(name: &str) -> bool {
    NAMES.binary_search(&name).is_ok()
}

/// Whether the verb `name` of a script means the verb `called`: what `ibv_wr_*` add to a send queue is posted when
/// `ibv_wr_complete` returns, so `post_send` is both.
pub(crate) fn names(name: &str, called: &str) -> bool {
    name == called || (name == "post_send" && called == "wr_complete")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_plain() {
        assert!(NAMES.is_sorted());
        assert!(NAMES.iter().all(|name| plain(name) == *name));
        assert_eq!((plain("ibv_create_qp_ex"), plain("create_qp")), ("create_qp", "create_qp"));
        assert!(is_one("reg_mr") && !is_one("reg_mrs"));
    }
}
