//! The filter of `docs_list` and of the bulk calls, as fields of a form.
use serde::Deserialize;
use serde_json::{Map, Value};

use super::context::encode;

/// The fields as they were typed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Filter {
    pub status: String,
    pub subject: String,
    pub error: String,
    pub payload: String,
    pub ordering_key: String,
    pub older_than: String,
    pub newer_than: String,
    pub min_attempts: String,
    pub min_priority: String,
    pub max_priority: String,
    pub version: String,
    pub after: String,
}

impl Filter {
    /// Each field that is not empty, with its name.
    pub fn fields(&self) -> Vec<(&'static str, &str)> {
        let all = [
            ("status", &self.status),
            ("subject", &self.subject),
            ("error", &self.error),
            ("payload", &self.payload),
            ("ordering_key", &self.ordering_key),
            ("older_than", &self.older_than),
            ("newer_than", &self.newer_than),
            ("min_attempts", &self.min_attempts),
            ("min_priority", &self.min_priority),
            ("max_priority", &self.max_priority),
            ("version", &self.version),
        ];
        all.into_iter()
            .map(|(name, value)| (name, value.as_str()))
            .filter(|(_, value)| !value.is_empty())
            .collect()
    }

    /// The query of an address that has the same fields, and goes on after a subject.
    pub fn query(&self, after: &str) -> String {
        let mut query = String::from("?after=");
        query.push_str(&encode(after));
        for (name, value) in self.fields() {
            query.push_str(&format!("&{name}={}", encode(value)));
        }
        query
    }

    /// The filter that the calls take.
    ///
    /// # Errors
    /// A field that has to be a number or JSON is neither.
    pub fn to_json(&self) -> Result<Value, String> {
        let mut json = Map::new();
        for (name, value) in self.fields() {
            let value = match name {
                "min_attempts" | "min_priority" | "max_priority" | "version" => {
                    let number: i64 = value
                        .trim()
                        .parse()
                        .map_err(|_| format!("{name} has to be a whole number, not “{value}”."))?;
                    Value::from(number)
                }
                "payload" => serde_json::from_str(value)
                    .map_err(|error| format!("The payload has to be JSON: {error}."))?,
                _ => Value::from(value),
            };
            // What is typed is a pattern.
            let key = match name {
                "subject" => "subject_like",
                "error" => "error_like",
                _ => name,
            };
            json.insert(key.to_owned(), value);
        }
        Ok(Value::Object(json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_field_is_no_condition_and_a_bad_number_is_an_error() {
        let mut filter = Filter {
            status: "killed".to_owned(),
            ..Filter::default()
        };
        assert_eq!(
            filter.to_json(),
            Ok(serde_json::json!({"status": "killed"}))
        );
        filter.version = "x".to_owned();
        assert!(filter.to_json().is_err());
    }
}
