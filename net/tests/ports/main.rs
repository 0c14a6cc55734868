//! Ports against each other and against the kernel, in network namespaces of the tests' own, which need root or user namespaces.

mod descriptors;
mod end;
mod last_wills;
mod links;
mod loopback;
mod namespace;
mod other_users;
mod paths;
mod processes;
mod raw;
mod requests;
mod rings;
mod trouble;
mod user_namespace;
mod veth;
