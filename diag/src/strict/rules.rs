//! Rules of strict mode: why each matters, and what to do instead.

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Rule {
    SendBufferChanged,
    RecvBufferChanged,
    RecvBufferSent,
    WriteOrder,
    DatagramTooShort,
    ReadWithoutDepth,
    NothingSignaled,
    /// Name of the queue.
    ListTooLong(&'static str),
    SendState,
    RecvState,
    CqTooSmall,
    MissingGrh,
    DeadKey,
    KeyAgain,
    NotAcknowledged,
    LeftOpen,
}

/// Words about a rule that are the same wherever it is broken.
#[derive(Debug)]
pub(super) struct Text {
    /// Consequence elsewhere.
    pub(super) why: &'static str,
    pub(super) remedy: &'static str,
}

impl Rule {
    pub(super) const fn text(self) -> Text {
        match self {
            Self::SendState => Text {
                why: "it is refused here; other devices take it, and send it or not",
                remedy: "bring the queue pair to RTS first",
            },
            Self::ReadWithoutDepth => Text {
                why: "max_rd_atomic is 0, so it may never be sent",
                remedy: "set IBV_QP_MAX_QP_RD_ATOMIC on the way to RTS",
            },
            Self::RecvBufferSent => Text {
                why: "what a receive buffer holds before its completion is not defined",
                remedy: "poll the completion of the receive first",
            },
            Self::ListTooLong(_) => Text {
                why: "it has room for that many only if some complete while the list is posted",
                remedy: "post no more at once than the queue was made for",
            },
            Self::NothingSignaled => Text {
                why: "cards free places only when a later signaled request completes: this queue would stall for ever",
                remedy: "set IBV_SEND_SIGNALED at least once in max_send_wr requests",
            },
            Self::RecvState => Text {
                why: "it is refused here; other devices take it, and lose it on the way to INIT",
                remedy: "bring the queue pair to INIT first",
            },
            Self::DatagramTooShort => Text {
                why: "every datagram begins with 40 bytes of GRH, so no message fits",
                remedy: "post 40 bytes more than the longest message",
            },
            Self::SendBufferChanged => Text {
                why: "a card reads it when it sends, and again when it sends again: the peer gets either contents, or a \
                      mixture",
                remedy: "leave buffers alone until their completion is polled",
            },
            Self::RecvBufferChanged => Text {
                why: "it is the device's until then: a message may come at any time, and be overwritten or overwrite",
                remedy: "leave buffers alone from posting until their completion is polled",
            },
            Self::WriteOrder => Text {
                why: "whoever waits for the last bytes of a WRITE goes on without the others: in which order they are stored is \
                  not defined",
                remedy: "wait for a completion: of WRITE_WITH_IMM, or of a SEND behind the WRITE",
            },
            Self::CqTooSmall => Text {
                why: "if they all complete before it is polled, it overruns, and takes its queue pairs with it",
                remedy: "make the CQ as large as its queues together, or never have more outstanding",
            },
            Self::MissingGrh => Text {
                why: "InfiniBand devices take it, RoCE has no other addresses",
                remedy: "set ah_attr.is_global, grh.dgid and grh.sgid_index wherever the link layer may be Ethernet",
            },
            Self::DeadKey => Text {
                why: "other devices give keys out again, and the access would hit what has it then",
                remedy: "deregister only when every work request that names the region has completed, here and at the peers",
            },
            Self::KeyAgain => Text {
                why: "a peer that still has it from then, or a packet that is late, gets at the new memory",
                remedy: "take another key for every bind: ibv_inc_rkey(3)",
            },
            Self::NotAcknowledged => Text {
                why: "it returns only when they are, so perhaps never",
                remedy: "acknowledge every event that was got, before destroying what it is about",
            },
            Self::LeftOpen => Text {
                why: "what is not destroyed is leaked, and keeps memory pinned on a card",
                remedy: "destroy queue pairs, then deregister MRs, then close",
            },
        }
    }
}
