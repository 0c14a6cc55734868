//! Verbs that failed: where one is refused, [`because`] notes the rule; [`failed`] prints it on the way out.

use std::cell::RefCell;

use urxe_explain::Verb;

use super::line::Line;
use crate::kernel::Errno;

/// The rule that was broken last on this thread.
struct Reason {
    errno: Errno,
    qp: Option<u32>,
    why: String,
    remedy: String,
}

thread_local! {
    static REASON: RefCell<Option<Reason>> = const { RefCell::new(None) };
}

/// Returns `errno`, and notes why for [`failed`]. `say` gives what was wrong and what to do; it is called only if
/// somebody wants to know.
pub(crate) fn with_reason<W: Into<String>, R: Into<String>>(errno: Errno, say: impl FnOnce() -> (W, R)) -> Errno {
    if super::wanted().is_some() {
        let (why, remedy) = say();
        let reason = Reason { errno, qp: None, why: why.into(), remedy: remedy.into() };
        // A thread that ends has nobody to tell.
        let _ = REASON.try_with(|place| *place.borrow_mut() = Some(reason));
    }
    errno
}

/// Explains that `verb` failed.
pub(crate) fn failed(verb: Verb, errno: Errno) {
    let Some(format) = super::wanted() else { return };
    let noted = REASON.try_with(|place| place.borrow_mut().take()).ok().flatten();
    let noted = noted.filter(|reason| reason.errno == errno);
    // That is how they say that there is no completion (`ibv_create_cq_ex(3)`).
    if matches!(verb, Verb::StartPoll | Verb::NextPoll) && errno.0 == libc::ENOENT {
        return;
    }
    let entry = u32::try_from(errno.0).ok().and_then(|number| urxe_explain::errno::TABLE.by_number(number));
    let code = entry.map_or("errno", |entry| entry.name);
    let (why, remedy, qp) = match noted {
        Some(Reason { why, remedy, qp, .. }) => (why, remedy, qp),
        None => {
            let (why, remedy) = general(verb, errno);
            (why, remedy, None)
        }
    };
    let what = format!("{verb} failed with {code}");
    Line { kind: "verb", code, qp, what: &what, why: &why, remedy: &remedy, ..Line::default() }.print(format);
}

/// The cause and the remedy of a failure without a noted reason: what destroys fail for, else the table.
fn general(verb: Verb, errno: Errno) -> (String, String) {
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
    if let (Some(users), libc::EBUSY) = (users, errno.0) {
        return (users.to_owned(), "destroy or detach these first".to_owned());
    }
    match u32::try_from(errno.0).ok().and_then(|number| urxe_explain::errno::TABLE.by_number(number)) {
        Some(entry) => (format!("{} ({})", entry.meaning, entry.cause), entry.remedy.to_owned()),
        None => (errno.to_string(), "see the manual page of the verb".to_owned()),
    }
}
