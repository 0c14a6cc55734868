//! Sockets between the processes of one host.
//!
//! | file | holds |
//! |---|---|
//! | `unix` | SEQPACKET sockets between processes of one user, at abstract names made of QPN blocks |
//! | `channel` | [`Listener`] and [`Channel`]: messages and open files, for what packets cannot do |
//! | `notes` | [`Notes`]: why a request was refused, for the process that made it |
//! | `credentials` | user and process at the other end of a unix socket |
//! | `bind` | sockets bound to a name, to which nobody can send files |
//! | `passed_files` | [`refuse_files`]: has the kernel refuse files to a socket |
//! | `sealed_file` | files in memory that processes map |
//! | `header` | the header of a forwarded datagram |

pub mod bind;
pub mod channel;
pub mod credentials;
pub(crate) mod header;
pub mod notes;
mod passed_files;
pub(crate) mod sealed_file;
pub(crate) mod unix;

pub use channel::{Channel, KeptFile, Listener};
pub use credentials::Credentials;
pub use notes::Notes;
pub use passed_files::refuse_files;
pub use sealed_file::commit;

/// Prefix of every name of this crate in the abstract namespace; the digit is the version of the protocols there.
pub(crate) const NAME_PREFIX: &str = "urxe/1";
