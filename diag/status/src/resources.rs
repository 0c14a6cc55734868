//! The objects of a device, as `rdma resource` shows them: lists of numbers, in a member `resources` of its report.
//!
//! The names of lists and members stand in one place for those who tell and those who ask: [`KINDS`]. What a number means
//! is nldev's to say (`<rdma/rdma_netlink.h>`): states, types and port spaces are the kernel's.

/// A kind of objects: the name of its list, and its members.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Name of the list, and in a summary of the kernel.
    pub name: &'static str,
    /// Public members of each. The first is the number that tells it from others of its kind in its process.
    pub members: &'static [&'static str],
}

/// Kinds of objects, in the order in which the kernel lists them (`enum rdma_restrack_type`).
pub const KINDS: [Kind; 7] = [
    Kind { name: "pd", members: &["pdn", "users", "ctxn"] },
    Kind { name: "cq", members: &["cqn", "cqe", "users", "ctxn"] },
    Kind {
        name: "qp",
        members: &["lqpn", "rqpn", "rq_psn", "sq_psn", "path_mig_state", "type", "state", "pdn", "srqn"],
    },
    Kind {
        name: "cm_id",
        members: &[
            "cm_idn", "ps", "state", "type", "src_ipv4", "src_ipv6", "src_port", "dst_ipv4", "dst_ipv6", "dst_port",
        ],
    },
    Kind { name: "mr", members: &["mrn", "mrlen", "pdn"] },
    Kind { name: "ctx", members: &["ctxn"] },
    Kind { name: "srq", members: &["srqn", "type", "pdn"] },
];

/// An object: its members by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object<'a>(Vec<(&'a str, u128)>);

impl Object<'_> {
    /// A member. Others' reports may lack any, or hold anything.
    #[must_use]
    pub fn get(&self, member: &str) -> Option<u128> {
        self.0.iter().find(|(name, _)| *name == member).map(|(_, value)| *value)
    }
}

/// The most objects of a kind that are read of one report.
const MOST_OBJECTS: usize = 1 << 20;

/// The list of a kind in a report, each object with the members of its kind.
pub fn objects<'a>(report: &'a str, kind: &str) -> impl Iterator<Item = Object<'a>> + use<'a> {
    let known = KINDS.iter().find(|known| known.name == kind).map_or(&[][..], |known| known.members);
    // In a value the quotation marks would be escaped, and no list holds another.
    let lists = report.split_once("\"resources\":{").map(|(_, lists)| lists);
    let list = lists.and_then(|lists| lists.split_once(&format!("\"{kind}\":[")));
    let list = list.and_then(|(_, list)| list.split_once(']')).map(|(list, _)| list);
    let objects = list.unwrap_or_default().split('}').take(MOST_OBJECTS);
    objects.filter_map(|object| Some(members(object.split_once('{')?.1, known)))
}

/// Any user may write the object: an unknown member, and one more than there can be, takes no memory.
fn members<'a>(object: &'a str, known: &[&str]) -> Object<'a> {
    let member = |member| {
        let (name, value): (&str, &str) = str::split_once(member, ':')?;
        let name = name.trim_matches('"');
        known.contains(&name).then_some((name, value.parse().ok()?))
    };
    Object(object.split(',').filter_map(member).take(known.len()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = concat!(
        r#"{"pid":7,"program":"\"resources\":{\"pd\":[{\"pdn\":9}]","qps":[{"qpn":1}],"#,
        r#""resources":{"pd":[{"pdn":1,"users":2},{"pdn":3,"users":0}],"qp":[],"mr":[{"mrn":5,"mrlen":18446744073709551615}]}}"#
    );

    #[test]
    fn lists_of_a_report() {
        let pds: Vec<_> = objects(REPORT, "pd").map(|pd| (pd.get("pdn"), pd.get("users"), pd.get("else"))).collect();
        assert_eq!(pds, [(Some(1), Some(2), None), (Some(3), Some(0), None)]);
        assert_eq!(objects(REPORT, "qp").count(), 0);
        assert_eq!(objects(REPORT, "mr").next().unwrap().get("mrlen"), Some(u128::from(u64::MAX)));
        assert_eq!(objects(REPORT, "cq").count(), 0);
    }

    #[test]
    fn malformed_reports_have_no_resources() {
        for text in ["", "{}", "\"resources\":{", "\"resources\":{\"pd\":[", "\"resources\":{\"pd\":[}]", "\"pd\":[{}]"]
        {
            assert_eq!(objects(text, "pd").count(), 0, "{text}");
        }
        let odd = objects("\"resources\":{\"pd\":[{\"pdn\":x,,\"users\":-1,\"ctxn\":2}]}", "pd").next().unwrap();
        assert_eq!((odd.get("pdn"), odd.get("users"), odd.get("ctxn")), (None, None, Some(2)));
    }

    #[test]
    fn an_object_has_the_members_of_its_kind() {
        let report = |members: &str| format!("\"resources\":{{\"pd\":[{{{members}}}]}}");
        let all = report(&format!("{}\"pdn\":5", "\"x\":0,:0,\"lqpn\":7,".repeat(1000)));
        assert_eq!(objects(&all, "pd").next(), Some(Object(vec![("pdn", 5)])));
        let often = report(&"\"pdn\":5,".repeat(1000));
        assert_eq!(objects(&often, "pd").next(), Some(Object(vec![("pdn", 5); 3])));
    }

    #[test]
    fn no_name_is_part_of_another() {
        for kind in KINDS {
            assert!(KINDS.iter().filter(|other| other.name == kind.name).count() == 1 && !kind.members.is_empty());
        }
    }
}
