#![forbid(unsafe_code)]
//! A raw peer for tests of programs that use RDMA: `urxe inject` and `urxe replay`.
//!
//! | module | holds |
//! |---|---|
//! | [`peer`] | one queue pair at an address of its own; an [`Endpoint`](urxe_engine::Endpoint) answers what the other end asks, and requests are written packet by packet |
//! | [`arrived`] | packets that have come |
//! | [`handshake`] | how the other end gets to know the peer: text over TCP, as the ping-pongs of rdma-core do, or rdma_cm |
//! | [`script`] | packets as text, with errors by line and column |
//! | [`play`] | carrying out a script |
//! | [`campaign`] | messages by a seed, until the other end is no more |
//! | [`replay`] | one side of a capture |
//! | [`memory`] | memory with every key and every address |

pub mod arrived;
pub mod campaign;
pub mod handshake;
pub mod memory;
pub mod peer;
pub mod play;
pub mod replay;
pub mod script;

use std::io;
use std::time::Duration;

/// Reason why nothing can be injected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refuses something.
    #[error("{0}: {1}")]
    Os(String, io::Error),
    /// The other end refuses the connection.
    #[error("{0}")]
    Refused(String),
    /// The other end does not answer.
    #[error("no answer within {0:?}: {1}")]
    Silent(Duration, String),
    /// Argument that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn os(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Os(what, cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let error = Error::os("an address")(io::Error::from_raw_os_error(99));
        assert!(
            error.to_string().starts_with("an address: ") && std::error::Error::source(&error).is_none(),
            "{error}"
        );
    }
}
