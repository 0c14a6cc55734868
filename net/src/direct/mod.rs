//! Memory of one process that processes of the same user and host reach themselves.
//!
//! A *target* has a file in memory without a name ([`SharedFile`]): in it are the pages of its registered memory, and for each of
//! its devices a table of what peers may do ([`Export`]). The file is handed over with each ring; its receiver maps it
//! ([`Import`]) and carries out requests by itself, as far as the table says that the target would.
//!
//! | file | holds |
//! |---|---|
//! | `words` | the words of the table, and the protocol of showing, hiding, entering and leaving: safe |
//! | `receives` | the words of receive WQEs, and of messages that were put into them: safe |
//! | `file` | the file: sealed, sparse, and which parts of it are in use |
//! | `mapping` | mapped parts of the file: the only `unsafe` that touches what another process writes |
//! | `copies` | copies that peers had not ended when what they are at was hidden |
//! | `export` | the target's side |
//! | `import` | the requester's side: a file that was handed over, and what is shown in there |
//! | `visit` | one queue pair that is shown, to who copies |
//!
//! # Trust
//!
//! The other end writes into the table what it likes, at any time. Each side copies words before it looks at them, and nothing in
//! there makes it touch anything but the file, which cannot become shorter. The file is offered to processes that may trace the target
//! as far as user, PID namespace and dumpability go: a requester that lies can do no more than it could by requests or by ptrace(2). A
//! target that lies spoils its own memory only: it is asked about queue pairs of its own process alone.

mod copies;
mod export;
mod file;
mod import;
mod mapping;
mod receives;
mod visit;
mod words;

pub use export::{Export, Receives};
pub use file::SharedFile;
pub use import::{Import, Seen};
pub use mapping::{forget_imports, is_import};
pub use receives::{Message, SharedReceive};
pub use visit::{Found, Visit};
pub use words::{SharedQp, SharedRegion, Taken};

pub(crate) use file::Offer;
pub(crate) use import::Imports;

/// Version of what a table says: its layout ([`words`], [`mapping`]), the places of queue pairs and regions in it, the protocol of
/// entering and leaving, and the meaning that `urxe-runtime` gives to the words. Whoever changes any of these changes the number.
pub(crate) const VERSION: u64 = 2;

/// Queue pairs that a table has room for: each has its place by the low bits of its number.
const QPS: usize = 4096;
/// Queue pairs that can show their receive WQEs at a time: each has its place by the low bits of its number.
const RECEIVERS: usize = 1024;
/// Regions that a table has room for: each has its place by the index in its key.
const REGIONS: usize = 16384;
