//! The verbs that reach a provider, by name.

use core::fmt;

macro_rules! verbs {
    ($($(#[$note:meta])* $variant:ident $name:literal;)*) => {
        /// A verb: a function of libibverbs that calls its provider.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum Verb {
            $(#[doc = concat!("`", $name, "`.")] $(#[$note])* $variant,)*
        }

        impl Verb {
            /// List of all verbs.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The function's name, such as `ibv_modify_qp`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

verbs! {
    AdviseMr "ibv_advise_mr";
    AllocDm "ibv_alloc_dm";
    AllocDmah "ibv_alloc_dmah";
    AllocMw "ibv_alloc_mw";
    AllocNullMr "ibv_alloc_null_mr";
    AllocParentDomain "ibv_alloc_parent_domain";
    AllocPd "ibv_alloc_pd";
    AllocTd "ibv_alloc_td";
    AttachCountersPointFlow "ibv_attach_counters_point_flow";
    AttachMcast "ibv_attach_mcast";
    BindMw "ibv_bind_mw";
    CloseDevice "ibv_close_device";
    CloseXrcd "ibv_close_xrcd";
    CreateAh "ibv_create_ah";
    CreateCompCntr "ibv_create_comp_cntr";
    CreateCounters "ibv_create_counters";
    CreateCq "ibv_create_cq";
    CreateCqEx "ibv_create_cq_ex";
    CreateFlow "ibv_create_flow";
    CreateQp "ibv_create_qp";
    CreateQpEx "ibv_create_qp_ex";
    CreateRwqIndTable "ibv_create_rwq_ind_table";
    CreateSrq "ibv_create_srq";
    CreateSrqEx "ibv_create_srq_ex";
    CreateWq "ibv_create_wq";
    DeallocDmah "ibv_dealloc_dmah";
    DeallocMw "ibv_dealloc_mw";
    DeallocPd "ibv_dealloc_pd";
    DeallocTd "ibv_dealloc_td";
    DeregMr "ibv_dereg_mr";
    DestroyAh "ibv_destroy_ah";
    DestroyCompCntr "ibv_destroy_comp_cntr";
    DestroyCounters "ibv_destroy_counters";
    DestroyCq "ibv_destroy_cq";
    DestroyFlow "ibv_destroy_flow";
    DestroyQp "ibv_destroy_qp";
    DestroyRwqIndTable "ibv_destroy_rwq_ind_table";
    DestroySrq "ibv_destroy_srq";
    DestroyWq "ibv_destroy_wq";
    DetachMcast "ibv_detach_mcast";
    DmExportDmabufFd "ibv_dm_export_dmabuf_fd";
    FreeDm "ibv_free_dm";
    GetSrqNum "ibv_get_srq_num";
    ImportDevice "ibv_import_device";
    ImportDm "ibv_import_dm";
    ImportMr "ibv_import_mr";
    ImportPd "ibv_import_pd";
    IncCompCntr "ibv_inc_comp_cntr";
    IncErrCompCntr "ibv_inc_err_comp_cntr";
    MemcpyFromDm "ibv_memcpy_from_dm";
    MemcpyToDm "ibv_memcpy_to_dm";
    ModifyCq "ibv_modify_cq";
    ModifyQp "ibv_modify_qp";
    ModifyQpRateLimit "ibv_modify_qp_rate_limit";
    ModifySrq "ibv_modify_srq";
    ModifyWq "ibv_modify_wq";
    NextPoll "ibv_next_poll";
    OpenDevice "ibv_open_device";
    OpenQp "ibv_open_qp";
    OpenXrcd "ibv_open_xrcd";
    PollCq "ibv_poll_cq";
    PostRecv "ibv_post_recv";
    PostSend "ibv_post_send";
    PostSrqRecv "ibv_post_srq_recv";
    PostWqRecv "ibv_post_wq_recv";
    QpAttachCompCntr "ibv_qp_attach_comp_cntr";
    QueryCompCntrCaps "ibv_query_comp_cntr_caps";
    QueryDevice "ibv_query_device";
    QueryPort "ibv_query_port";
    QueryPortSpeed "ibv_query_port_speed";
    QueryQp "ibv_query_qp";
    QueryRtValues "ibv_query_rt_values";
    QuerySrq "ibv_query_srq";
    ReadCompCntr "ibv_read_comp_cntr";
    ReadCounters "ibv_read_counters";
    ReadErrCompCntr "ibv_read_err_comp_cntr";
    RegDmMr "ibv_reg_dm_mr";
    RegDmabufMr "ibv_reg_dmabuf_mr";
    RegMr "ibv_reg_mr";
    RegMrEx "ibv_reg_mr_ex";
    ReqNotifyCq "ibv_req_notify_cq";
    ReregMr "ibv_rereg_mr";
    ResizeCq "ibv_resize_cq";
    SetCompCntr "ibv_set_comp_cntr";
    SetErrCompCntr "ibv_set_err_comp_cntr";
    StartPoll "ibv_start_poll";
    UnimportDm "ibv_unimport_dm";
    UnimportMr "ibv_unimport_mr";
    UnimportPd "ibv_unimport_pd";
    WrComplete "ibv_wr_complete";
}

impl Verb {
    /// The verb called `name`, with or without `ibv_`.
    ///
    /// ```
    /// use urxe_explain::Verb;
    /// assert_eq!(Verb::by_name("reg_mr"), Some(Verb::RegMr));
    /// assert_eq!(Verb::by_name("ibv_create_qp_ex"), Some(Verb::CreateQpEx));
    /// assert_eq!(Verb::by_name("reg_mrs"), None);
    /// ```
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("ibv_").unwrap_or(name);
        Self::ALL.iter().copied().find(|verb| verb.name().strip_prefix("ibv_") == Some(name))
    }

    /// The verb that does the same with fewer arguments: `ibv_create_qp` for `ibv_create_qp_ex`, `ibv_post_send` for
    /// `ibv_wr_complete`; else the verb itself.
    #[must_use]
    pub const fn basic(self) -> Self {
        match self {
            Self::CreateCqEx => Self::CreateCq,
            Self::CreateQpEx => Self::CreateQp,
            Self::CreateSrqEx => Self::CreateSrq,
            Self::RegMrEx => Self::RegMr,
            Self::WrComplete => Self::PostSend,
            other => other,
        }
    }

    /// Whether its caller learns of a failure: the functions that unimport return nothing.
    #[must_use]
    pub const fn can_fail(self) -> bool {
        !matches!(self, Self::UnimportDm | Self::UnimportMr | Self::UnimportPd)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_manual_and_no_two_are_equal() {
        assert!(Verb::ALL.is_sorted_by_key(|verb| verb.name()));
        for verb in Verb::ALL {
            let plain = verb.name().strip_prefix("ibv_").unwrap();
            assert_eq!((Verb::by_name(verb.name()), Verb::by_name(plain)), (Some(*verb), Some(*verb)));
            assert_eq!(verb.basic().basic(), verb.basic());
        }
    }
}
