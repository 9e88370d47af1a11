//! The retention policy of a queue's metrics.

use serde::Deserialize;

use crate::domain::invalid::Invalid;

/// Keeps the newest snapshot of each metric for every `retain` unit of the time
/// between `from` ago and `to` ago; the rest of that time is removed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Rule {
    /// A unit of `date_trunc`, such as `minute` or `hour`.
    pub retain: String,
    /// Older end, as a PostgreSQL interval before now.
    pub from: String,
    /// Newer end, as a PostgreSQL interval before now.
    pub to: String,
}

/// Reads `[{"retain": "minute", "from": "1h", "to": "0s"}, …]`.
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
