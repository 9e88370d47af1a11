//! The retention policy of the metrics of a queue.

use serde::Deserialize;

use crate::invalid::Invalid;

/// A rule of a policy.
///
/// It applies to the time between `from` ago and `to` ago. Of each metric it keeps the newest
/// snapshot in every `retain` unit of that time, and the other snapshots are removed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Rule {
    /// A unit of `date_trunc`, such as `minute` or `hour`.
    pub retain: String,
    /// The start of the time, as an interval before now.
    pub from: String,
    /// The end of the time, as an interval before now.
    pub to: String,
}

/// Reads a policy such as `[{"retain": "minute", "from": "1h", "to": "0s"}]`.
///
/// Fails with `Invalid::Retention` when it is not valid. Units and intervals are not checked.
pub fn parse(json: &str) -> Result<Vec<Rule>, Invalid> {
    serde_json::from_str(json).map_err(|e| Invalid::Retention(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_list_of_rules() {
        let rules = parse(r#"[{"retain":"minute","from":"1h","to":"0s"}]"#).unwrap();
        assert_eq!(rules[0].retain, "minute");
        assert_eq!(parse("[]").unwrap(), vec![]);
        for bad in ["{}", "null", r#"[{"retain":"minute"}]"#, "[1]", "nonsense"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
