//! Verbs that failed: where one is refused, [`with_reason`] notes the rule; [`failed`] prints it on the way out.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;

use urxe_explain::Verb;
use urxe_runtime::per_thread::PerThread;

use super::line::Line;

/// The rule that was broken last on this thread.
struct Reason {
    errno: i32,
    qp: Option<u32>,
    why: String,
    remedy: String,
}

static REASON: PerThread<RefCell<Option<Reason>>> = PerThread::new();

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Guard: while it lives, [`with_reason`] notes nothing on its thread. For signal handlers, which must not allocate, nor replace
/// the reason of the verb that they interrupt.
#[derive(Debug)]
#[must_use]
pub struct Quiet {
    was_quiet: bool,
    /// Makes the guard `!Send`: the state is the thread's.
    _here: PhantomData<*const ()>,
}

impl Quiet {
    /// Begins to note nothing.
    #[cold]
    pub fn new() -> Self {
        Self { was_quiet: IS_QUIET.replace(true), _here: PhantomData }
    }
}

impl Default for Quiet {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        IS_QUIET.set(self.was_quiet);
    }
}

/// Whether failures of this thread are explained: the environment asks for it, and there is no [`Quiet`].
pub fn is_wanted() -> bool {
    !IS_QUIET.get() && super::wanted().is_some()
}

/// Whether an errno is a verb's answer rather than a failure: a poll that finds no completion returns ENOENT (`ibv_create_cq_ex(3)`).
#[must_use]
pub fn is_answer(verb: Verb, errno: i32) -> bool {
    matches!(verb, Verb::StartPoll | Verb::NextPoll) && errno == libc::ENOENT
}

/// Returns `errno`, and notes why for [`failed`]. `say` gives what was wrong and what to do; it is called only where failures
/// [are explained](is_wanted).
pub fn with_reason<E, W, R>(errno: E, say: impl FnOnce() -> (W, R)) -> E
where
    E: Copy + Into<i32>,
    W: Into<String>,
    R: Into<String>,
{
    if is_wanted() {
        let (why, remedy) = say();
        let reason = Reason { errno: errno.into(), qp: None, why: why.into(), remedy: remedy.into() };
        REASON.with(|place| *place.borrow_mut() = Some(reason));
    }
    errno
}

/// Explains that `verb` failed.
pub fn failed(verb: Verb, errno: i32) {
    if is_answer(verb, errno) {
        return;
    }
    explain("verb", verb.name(), errno, || general(verb, errno));
}

/// Explains that a function failed, by the noted reason, or else by `general`. `kind` is that of the [`Line`].
pub(super) fn explain(kind: &str, function: &str, errno: i32, general: impl FnOnce() -> (String, String)) {
    let Some(format) = super::wanted() else { return };
    let noted = REASON.with(|place| place.borrow_mut().take()).flatten();
    let noted = noted.filter(|reason| reason.errno == errno);
    let entry = u32::try_from(errno).ok().and_then(|number| urxe_explain::errno::TABLE.by_number(number));
    let code = entry.map_or("errno", |entry| entry.name);
    let (why, remedy, qp) = match noted {
        Some(Reason { why, remedy, qp, .. }) => (why, remedy, qp),
        None => {
            let (why, remedy) = general();
            (why, remedy, None)
        }
    };
    let what = format!("{function} failed with {code}");
    Line { kind, code, qp, what: &what, why: &why, remedy: &remedy, ..Line::default() }.print(format);
}

/// The cause and the remedy of a failure without a noted reason: what destroys fail for, else the table.
fn general(verb: Verb, errno: i32) -> (String, String) {
    let users = match verb {
        Verb::DeallocPd => Some("queue pairs, MRs, MWs, SRQs or AHs were made from the PD"),
        Verb::DestroyCq => Some("queue pairs or XRC SRQs complete there"),
        Verb::DestroySrq => Some("queue pairs receive from it"),
        Verb::DestroyQp => Some("it is attached to multicast groups"),
        Verb::DeregMr => Some("memory windows are bound to it"),
        Verb::CloseXrcd => Some("SRQs or queue pairs are in it"),
        Verb::DeallocTd => Some("a parent domain was made from it"),
        _ => None,
    };
    if let (Some(users), libc::EBUSY) = (users, errno) {
        return (users.to_owned(), "destroy or detach these first".to_owned());
    }
    match u32::try_from(errno).ok().and_then(|number| urxe_explain::errno::TABLE.by_number(number)) {
        Some(entry) => (format!("{} ({})", entry.meaning, entry.cause), entry.remedy.to_owned()),
        None => (io::Error::from_raw_os_error(errno).to_string(), "see the manual page of the verb".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_nest() {
        let outer = Quiet::new();
        drop(Quiet::new());
        assert!(IS_QUIET.get());
        drop(outer);
        assert!(!IS_QUIET.get());
    }
}
