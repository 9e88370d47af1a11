//! Values of type `jsonb`, which are passed on without being converted.

use std::collections::BTreeMap;
use std::ffi::CStr;

use pgrx::pg_sys::{self, JsonbIteratorToken as Token};

use crate::domain::list_length;
use crate::error::Result;
use crate::pg::memory;
use crate::pg::text::c_string;
use crate::pg::value::Arg;

/// How much larger than a copy of a JSON text its values are in memory of Rust: those of a list have two
/// bytes in the text at least, and 32 in a vector, which grows by doubling.
const PARSED: usize = 10;

/// A `jsonb` value in the memory of the server.
#[derive(Clone, Copy)]
pub struct Jsonb {
    datum: pg_sys::Datum,
}

/// Returns the elements of a `jsonb[]`, with None for each NULL. A NULL array has no elements.
pub fn elements(array: &Arg) -> Vec<Option<Jsonb>> {
    if array.is_null() {
        return Vec::new();
    }
    let mut values: *mut pg_sys::Datum = std::ptr::null_mut();
    let mut nulls: *mut bool = std::ptr::null_mut();
    let mut n = 0;
    // SAFETY: The argument is a jsonb[]. A detoasted array lives as long as the call, and its
    // elements stay in it.
    unsafe {
        let array = pg_sys::pg_detoast_datum(array.datum().cast_mut_ptr());
        pg_sys::deconstruct_array(
            array as *mut pg_sys::ArrayType,
            pg_sys::JSONBOID,
            -1,
            false,
            pg_sys::TYPALIGN_INT as std::ffi::c_char,
            &mut values,
            &mut nulls,
            &mut n,
        );
        (0..n as usize)
            .map(|at| (!*nulls.add(at)).then(|| Jsonb::from_datum(*values.add(at))))
            .collect()
    }
}

impl Jsonb {
    pub(super) fn from_datum(datum: pg_sys::Datum) -> Self {
        Self { datum }
    }

    /// Parses a JSON text. Raises PostgreSQL's own ERROR (22P02) when it is not valid.
    pub fn parse(text: &str) -> Self {
        // SAFETY: jsonb_in takes one C string.
        let datum = unsafe {
            pgrx::direct_function_call_as_datum(
                pg_sys::jsonb_in,
                &[Some(pg_sys::Datum::from(c_string(text)))],
            )
        };
        match datum {
            Some(datum) => Self { datum },
            None => pgrx::error!("jsonb_in returned NULL"),
        }
    }

    /// Returns how many bytes the value takes where it is, which may be compressed.
    pub fn stored_size(self) -> usize {
        // SAFETY: A jsonb begins with its length.
        unsafe { pgrx::varsize_any(self.datum.cast_mut_ptr()) }
    }

    /// Returns the value as JSON text, as PostgreSQL writes it. Raises an ERROR (`Error::OutOfMemory`).
    pub fn to_text(self) -> String {
        let text = self.text_of_server();
        memory::provide_or_raise(0, text.count_bytes());
        text.to_string_lossy().into_owned()
    }

    /// Returns the JSON text of an argument that is parsed by the library, such as a filter. From now on
    /// there is memory for the parser.
    ///
    /// Fails with `Invalid::LongJson` and `Error::OutOfMemory`.
    pub fn to_short_text(self, argument: &'static str) -> Result<String> {
        let text = self.text_of_server();
        list_length::check_json(argument, text.count_bytes())?;
        memory::provide(0, text.count_bytes().saturating_mul(PARSED))?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// The text in the memory of the server, which lives as long as the call.
    fn text_of_server<'a>(self) -> &'a CStr {
        // SAFETY: jsonb_out detoasts its argument and returns a C string.
        unsafe {
            match pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(self.datum)]) {
                Some(out) => CStr::from_ptr(out.cast_mut_ptr()),
                None => pgrx::error!("jsonb_out returned NULL"),
            }
        }
    }

    /// Returns the value for reading what is in it.
    pub fn value(self) -> Value {
        const HEADER: usize = size_of::<i32>();
        // SAFETY: A detoasted jsonb lives as long as the call. It begins with its length in four
        // bytes, which its container follows. A scalar is the only element of an array that is
        // marked as such.
        unsafe {
            let value = pg_sys::pg_detoast_datum(self.datum.cast_mut_ptr()) as *mut u8;
            let container = value.add(HEADER).cast::<pg_sys::JsonbContainer>();
            if (*container).header & pg_sys::JB_FSCALAR != 0 {
                let scalar = pg_sys::getIthJsonbValueFromContainer(container, 0);
                return Value { raw: *scalar };
            }
            let mut raw = pg_sys::JsonbValue {
                type_: pg_sys::jbvType::jbvBinary,
                ..Default::default()
            };
            raw.val.binary.data = container;
            raw.val.binary.len = (pgrx::varsize_any(value.cast()) - HEADER) as i32;
            Value { raw }
        }
    }

    /// Returns whether the value is an object, and not an array or a scalar.
    pub fn is_object(self) -> bool {
        const HEADER: usize = size_of::<i32>();
        // SAFETY: A detoasted jsonb begins with its length in four bytes, which the header of
        // its container follows.
        unsafe {
            let value = pg_sys::pg_detoast_datum(self.datum.cast_mut_ptr()) as *const u8;
            let header = value.add(HEADER).cast::<u32>().read_unaligned();
            header & pg_sys::JB_FOBJECT != 0
        }
    }

    /// Returns the type of the value as JSON calls it, such as `array`.
    pub fn type_name(self) -> String {
        // SAFETY: jsonb_typeof takes a jsonb and returns a text.
        unsafe { pgrx::direct_function_call(pg_sys::jsonb_typeof, &[Some(self.datum)]) }
            .unwrap_or_else(|| pgrx::error!("jsonb_typeof returned NULL"))
    }

    /// Returns both values as `||` puts them together: two objects become one.
    pub fn concat(self, other: Self) -> Self {
        let args = [Some(self.datum), Some(other.datum)];
        // SAFETY: jsonb_concat takes two jsonb, and returns one.
        match unsafe { pgrx::direct_function_call_as_datum(pg_sys::jsonb_concat, &args) } {
            Some(datum) => Self { datum },
            None => pgrx::error!("jsonb_concat returned NULL"),
        }
    }

    /// Returns the canonical text of these fields of an object, of which those that are missing are null,
    /// or of the whole value without a field. Values that are equal have the same text: PostgreSQL has
    /// one order for keys, and numbers lose the zeros at the end of their fractions. None: there are fields,
    /// and the value is no object. Raises an ERROR (`Error::OutOfMemory`).
    pub fn content(self, fields: &[String]) -> Option<String> {
        let value = self.value();
        let mut canonical = Canonical::default();
        if fields.is_empty() {
            canonical.mark(Token::WJB_BEGIN_ARRAY);
            canonical.add(Token::WJB_ELEM, value);
            canonical.mark(Token::WJB_END_ARRAY);
        } else {
            let members: BTreeMap<String, Value> = value.members()?.into_iter().collect();
            canonical.mark(Token::WJB_BEGIN_OBJECT);
            for name in fields {
                canonical.add(Token::WJB_KEY, Value::of_text(name));
                let member = members.get(name).copied();
                canonical.add(Token::WJB_VALUE, member.unwrap_or_else(Value::null));
            }
            canonical.mark(Token::WJB_END_OBJECT);
        }
        Some(canonical.finish().to_text())
    }

    /// Makes a value of type `jsonb`, which is NULL for None.
    pub fn arg(value: Option<Self>) -> Arg {
        Arg::new(pg_sys::JSONBOID, value.map(|v| v.datum))
    }
}

/// A `jsonb` that is being built, whose numbers have no zeros at the end of their fractions.
struct Canonical {
    state: *mut pg_sys::JsonbParseState,
    root: *mut pg_sys::JsonbValue,
}

impl Default for Canonical {
    fn default() -> Self {
        Self {
            state: std::ptr::null_mut(),
            root: std::ptr::null_mut(),
        }
    }
}

impl Canonical {
    /// Begins or ends a list or an object.
    fn mark(&mut self, token: Token::Type) {
        // SAFETY: The state is that of this value, and belongs to the call. These tokens have no value.
        self.root = unsafe { pg_sys::pushJsonbValue(&mut self.state, token, std::ptr::null_mut()) };
    }

    /// Adds a key, a value or an element, and what is in it.
    fn add(&mut self, token: Token::Type, value: Value) {
        let mut raw = value.raw;
        match raw.type_ {
            pg_sys::jbvType::jbvBinary => value.walk(false, |token, raw| match token {
                Token::WJB_KEY | Token::WJB_VALUE | Token::WJB_ELEM => {
                    self.add(token, Value { raw });
                }
                _ => self.mark(token),
            }),
            // SAFETY: The type says which member of the union is set. numeric_trim_scale takes a numeric
            // and returns one. The state is that of this value, and what the values point to lives as
            // long as it.
            _ => unsafe {
                if raw.type_ == pg_sys::jbvType::jbvNumeric {
                    let given = pg_sys::Datum::from(raw.val.numeric);
                    let trimmed = pgrx::direct_function_call_as_datum(
                        pg_sys::numeric_trim_scale,
                        &[Some(given)],
                    );
                    raw.val.numeric = trimmed.unwrap_or(given).cast_mut_ptr();
                }
                self.root = pg_sys::pushJsonbValue(&mut self.state, token, &mut raw);
            },
        }
    }

    fn finish(self) -> Jsonb {
        // SAFETY: The outermost list or object was ended, so that this is the whole value.
        let jsonb = unsafe { pg_sys::JsonbValueToJsonb(self.root) };
        Jsonb::from_datum(pg_sys::Datum::from(jsonb))
    }
}

/// What is in a `jsonb`: an element of an array, or the value of a key. It points into the `jsonb`,
/// which lives as long as the call.
#[derive(Clone, Copy)]
pub struct Value {
    raw: pg_sys::JsonbValue,
}

impl Value {
    /// Returns the kind of the value, as `jsonb_typeof` names it.
    pub fn kind(&self) -> &'static str {
        match self.raw.type_ {
            pg_sys::jbvType::jbvNull => "null",
            pg_sys::jbvType::jbvString => "string",
            pg_sys::jbvType::jbvNumeric => "number",
            pg_sys::jbvType::jbvBool => "boolean",
            _ if self.has_flag(pg_sys::JB_FOBJECT) => "object",
            _ => "array",
        }
    }

    /// The null of JSON.
    fn null() -> Self {
        let raw = pg_sys::JsonbValue {
            type_: pg_sys::jbvType::jbvNull,
            ..Default::default()
        };
        Self { raw }
    }

    /// A string that points to `text`, which has to live as long as the value.
    fn of_text(text: &str) -> Self {
        let mut raw = pg_sys::JsonbValue {
            type_: pg_sys::jbvType::jbvString,
            ..Default::default()
        };
        raw.val.string.len = text.len() as i32;
        raw.val.string.val = text.as_ptr().cast_mut().cast();
        Self { raw }
    }

    /// Returns whether the value is the null of JSON.
    pub fn is_null(&self) -> bool {
        self.raw.type_ == pg_sys::jbvType::jbvNull
    }

    fn has_flag(&self, flag: u32) -> bool {
        // SAFETY: The type says which member of the union is set.
        unsafe {
            self.raw.type_ == pg_sys::jbvType::jbvBinary
                && (*self.raw.val.binary.data).header & flag != 0
        }
    }

    /// Returns the text of a string. None: it is no string. Raises an ERROR (`Error::OutOfMemory`).
    pub fn text(&self) -> Option<String> {
        // SAFETY: The type says which member of the union is set. The bytes are in the jsonb.
        (self.raw.type_ == pg_sys::jbvType::jbvString).then(|| unsafe {
            let string = self.raw.val.string;
            memory::provide_or_raise(0, string.len as usize);
            let bytes = std::slice::from_raw_parts(string.val.cast::<u8>(), string.len as usize);
            String::from_utf8_lossy(bytes).into_owned()
        })
    }

    /// Returns the digits of a number, as PostgreSQL writes it. None: it is no number.
    pub fn number(&self) -> Option<String> {
        if self.raw.type_ != pg_sys::jbvType::jbvNumeric {
            return None;
        }
        // SAFETY: The type says which member of the union is set. numeric_out returns a C string.
        unsafe {
            let numeric = pg_sys::Datum::from(self.raw.val.numeric);
            pgrx::direct_function_call_as_datum(pg_sys::numeric_out, &[Some(numeric)]).map(|out| {
                std::ffi::CStr::from_ptr(out.cast_mut_ptr())
                    .to_string_lossy()
                    .into_owned()
            })
        }
    }

    /// Returns a copy of the value.
    pub fn to_jsonb(self) -> Jsonb {
        let mut raw = self.raw;
        // SAFETY: The value is complete, and what it points to lives as long as the call.
        let jsonb = unsafe { pg_sys::JsonbValueToJsonb(&mut raw) };
        Jsonb::from_datum(pg_sys::Datum::from(jsonb))
    }

    /// Returns how many elements an array has. None: it is no array. From now on there is memory for a
    /// call that handles them.
    ///
    /// Fails with `Invalid::LongList` and `Error::OutOfMemory`.
    pub fn checked_len(&self, list: &'static str) -> Result<Option<usize>> {
        if !self.has_flag(pg_sys::JB_FARRAY) {
            return Ok(None);
        }
        let n = self.len();
        list_length::check(list, n)?;
        // SAFETY: The flag says which member of the union is set.
        memory::provide(n, unsafe { self.raw.val.binary.len } as usize)?;
        Ok(Some(n))
    }

    /// The number of elements or keys of what is an array or an object.
    fn len(&self) -> usize {
        // SAFETY: The callers have checked that this is a container.
        unsafe { ((*self.raw.val.binary.data).header & pg_sys::JB_CMASK) as usize }
    }

    /// Returns the elements of an array. None: it is no array. Fails as [`Self::checked_len`] does.
    pub fn elements(&self, list: &'static str) -> Result<Option<Vec<Self>>> {
        if self.checked_len(list)?.is_none() {
            return Ok(None);
        }
        let mut elements = Vec::new();
        self.walk(true, |token, raw| {
            if token == Token::WJB_ELEM {
                elements.push(Self { raw });
            }
        });
        Ok(Some(elements))
    }

    /// Returns the keys of an object with their values. None: it is no object. Raises an ERROR
    /// (`Error::OutOfMemory`).
    pub fn members(&self) -> Option<Vec<(String, Self)>> {
        self.has_flag(pg_sys::JB_FOBJECT).then(|| {
            // SAFETY: The flag says which member of the union is set.
            memory::provide_or_raise(self.len(), unsafe { self.raw.val.binary.len } as usize);
            let mut members = Vec::new();
            let mut key = None;
            self.walk(true, |token, raw| match token {
                Token::WJB_KEY => key = Self { raw }.text(),
                Token::WJB_VALUE => {
                    members.push((key.take().unwrap_or_default(), Self { raw }));
                }
                _ => {}
            });
            members
        })
    }

    /// Goes through an array or an object, and with `skips_nested` not into what is in it.
    fn walk(&self, skips_nested: bool, mut visit: impl FnMut(Token::Type, pg_sys::JsonbValue)) {
        // SAFETY: The callers have checked that this is a container, which lives as long as the
        // call. The iterator fills in a value before it returns a token that has one.
        unsafe {
            let mut iterator = pg_sys::JsonbIteratorInit(self.raw.val.binary.data);
            loop {
                let mut raw = pg_sys::JsonbValue::default();
                let token = pg_sys::JsonbIteratorNext(&mut iterator, &mut raw, skips_nested);
                if token == Token::WJB_DONE {
                    return;
                }
                visit(token, raw);
            }
        }
    }
}
