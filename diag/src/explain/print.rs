//! Printing of explanations.

use std::io::Write as _;

use urxe_net::cancellation::CancelGuard;
use urxe_options::Format;

use super::held;
use super::line::Line;

impl Line<'_> {
    /// Prints the explanation by a single write, so that those of several threads and processes do not mix.
    pub(super) fn print(&self, format: Format) {
        let text = self.rendered(format);
        if format == Format::Held {
            return held::hold(text);
        }
        let _guard = CancelGuard::new();
        // Nothing can be done about a closed stderr.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
