//! Digest of events: equal for runs that went the same way.

use std::hash::{DefaultHasher, Hasher};

use urxe_engine::endpoint::Event;

/// The engine's events have no `Hash`; their debug output says everything that is in them.
pub(crate) fn hash_event(event: &Event, digest: &mut DefaultHasher) {
    struct Sink<'a>(&'a mut DefaultHasher);
    impl std::fmt::Write for Sink<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    std::fmt::Write::write_fmt(&mut Sink(digest), format_args!("{event:?}")).expect("hashing does not fail");
}
