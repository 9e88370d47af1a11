//! Parameters and results of all types that fetchq's functions use.

use std::error::Error;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A parameter.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Text(String),
    Int(i32),
    Big(i64),
    Float(f64),
    Bool(bool),
    Json(serde_json::Value),
    Time(DateTime<Utc>),
    Texts(Vec<String>),
    Ints(Vec<i32>),
    Jsons(Vec<serde_json::Value>),
    /// An interval, in microseconds.
    Interval(i64),
}

impl Value {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub fn texts(texts: &[&str]) -> Self {
        Self::Texts(texts.iter().map(|text| (*text).to_owned()).collect())
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Text(v) => v.to_sql_checked(ty, out),
            Self::Int(v) => v.to_sql_checked(ty, out),
            Self::Big(v) => v.to_sql_checked(ty, out),
            Self::Float(v) => v.to_sql_checked(ty, out),
            Self::Bool(v) => v.to_sql_checked(ty, out),
            Self::Json(v) => v.to_sql_checked(ty, out),
            Self::Time(v) => v.to_sql_checked(ty, out),
            Self::Texts(v) => v.to_sql_checked(ty, out),
            Self::Ints(v) => v.to_sql_checked(ty, out),
            Self::Jsons(v) => v.to_sql_checked(ty, out),
            Self::Interval(micros) => {
                if *ty != Type::INTERVAL {
                    return Err(format!("an interval for a parameter of type {ty}").into());
                }
                // The wire format: microseconds, days, months.
                out.extend_from_slice(&micros.to_be_bytes());
                out.extend_from_slice(&[0; 8]);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// An interval: microseconds, days, months.
struct Span(i64, i32, i32);

impl<'a> FromSql<'a> for Span {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let (micros, rest) = raw.split_at(8);
        let (days, months) = rest.split_at(4);
        Ok(Self(
            i64::from_be_bytes(micros.try_into()?),
            i32::from_be_bytes(days.try_into()?),
            i32::from_be_bytes(months.try_into()?),
        ))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::INTERVAL
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(micros, days, months) = self;
        write!(f, "{months} months {days} days {micros} us")
    }
}

/// A result column as text; "null" for NULL.
pub fn text_of(row: &Row, at: usize) -> String {
    fn show<'a, T: FromSql<'a> + ToString>(row: &'a Row, at: usize) -> String {
        row.get::<_, Option<T>>(at)
            .map_or_else(|| "null".to_owned(), |v| v.to_string())
    }
    match *row.columns()[at].type_() {
        Type::TEXT | Type::VARCHAR | Type::NAME => show::<String>(row, at),
        Type::INT4 => show::<i32>(row, at),
        Type::INT8 => show::<i64>(row, at),
        Type::FLOAT8 => show::<f64>(row, at),
        Type::BOOL => show::<bool>(row, at),
        Type::JSONB => show::<serde_json::Value>(row, at),
        Type::INTERVAL => show::<Span>(row, at),
        Type::TIMESTAMPTZ => show::<DateTime<Utc>>(row, at),
        Type::TEXT_ARRAY => row
            .get::<_, Option<Vec<String>>>(at)
            .map_or_else(|| "null".to_owned(), |texts| format!("{texts:?}")),
        Type::INT8_ARRAY => row
            .get::<_, Option<Vec<i64>>>(at)
            .map_or_else(|| "null".to_owned(), |numbers| format!("{numbers:?}")),
        ref other => panic!("text_of() does not know {other}"),
    }
}
