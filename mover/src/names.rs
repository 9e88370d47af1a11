//! The names of queues and of their tables, as the command line and statements have them.
use fetchq_domain::invalid::Invalid;
use fetchq_domain::names::{QueueName, TABLES};

/// Reads the names of the command line: sorted, each once.
pub fn parse_all(names: &[String]) -> Result<Vec<QueueName>, Invalid> {
    let mut parsed: Vec<QueueName> = names
        .iter()
        .map(|name| QueueName::parse(name.trim()))
        .collect::<Result<_, _>>()?;
    parsed.sort();
    parsed.dedup();
    Ok(parsed)
}

/// The names as an array of texts, a parameter of statements.
pub fn texts(names: &[QueueName]) -> Vec<&str> {
    names.iter().map(QueueName::as_str).collect()
}

/// The names of the tables that queues can have, without the schema.
pub fn table_names(names: &[QueueName]) -> Vec<String> {
    let all = names
        .iter()
        .flat_map(|name| TABLES.map(|suffix| name.relation(suffix)));
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_sorted_and_listed_once() {
        let names = ["b".to_owned(), "A".to_owned(), "a".to_owned()];
        let parsed = parse_all(&names).unwrap();
        assert_eq!(texts(&parsed), ["a", "b"]);
        assert!(parse_all(&["a b".to_owned()]).is_err());
    }

    #[test]
    fn a_queue_has_four_tables() {
        let names = [QueueName::parse("q").unwrap()];
        assert_eq!(
            table_names(&names),
            ["q__docs", "q__logs", "q__metrics", "q__history"]
        );
    }
}
