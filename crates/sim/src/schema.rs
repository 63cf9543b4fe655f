//! A value for a JSON Schema, drawn from the request. It covers what structured output asks for; where schemas can say
//! more (`not`, `if`, dependencies), the value may miss it.

use serde_json::{Map, Number, Value};

use super::draw::Draw;
use super::{pattern, words};

/// Below this depth, only what must be there is made: a recursive schema has to end.
const DEPTH_FULL: usize = 4;
/// Below this depth, nothing more is made.
const DEPTH_MAX: usize = 24;
/// How many references in a row are followed.
const REFERENCES_MAX: usize = 32;
/// Longest array or string that a schema can demand.
const LENGTH_MAX: u64 = 10_000;

/// A value that conforms to a schema.
pub(crate) fn value_for(schema: &Value, draw: &mut Draw) -> Value {
    Maker { root: schema, draw }.value(schema, 0)
}

struct Maker<'a> {
    root: &'a Value,
    draw: &'a mut Draw,
}

impl Maker<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        let merged = self.resolve(schema);
        let Some(schema) = merged.as_object() else { return self.string(&Map::new()) };
        if depth > DEPTH_MAX {
            return Value::Null;
        }
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(Value::Array(values)) = schema.get("enum")
            && !values.is_empty()
        {
            return values[self.draw.place(values.len())].clone();
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = schema.get(key)
                && !branches.is_empty()
            {
                return self.branch(schema, branches, depth);
            }
        }
        match kind(schema, depth) {
            Kind::Object => self.object(schema, depth),
            Kind::Array => self.array(schema, depth),
            Kind::String => self.string(schema),
            Kind::Integer => self.number(schema, true),
            Kind::Number => self.number(schema, false),
            Kind::Boolean => Value::Bool(self.draw.below(2) == 1),
            Kind::Null => Value::Null,
        }
    }

    /// The first branch; deep inside a recursive schema, the shortest, which is where the recursion ends.
    fn branch(&mut self, schema: &Map<String, Value>, branches: &[Value], depth: usize) -> Value {
        let branch = if depth < DEPTH_FULL {
            &branches[0]
        } else {
            let size = |branch: &&Value| self.resolve(branch).to_string().len();
            branches.iter().min_by_key(size).unwrap_or(&branches[0])
        };
        let mut whole = schema.clone();
        whole.shift_remove("anyOf");
        whole.shift_remove("oneOf");
        merge(&mut whole, &self.resolve(branch));
        self.value(&Value::Object(whole), depth + 1)
    }

    /// Follows `$ref` and joins `allOf`.
    fn resolve(&self, schema: &Value) -> Value {
        let mut current = schema.clone();
        for _ in 0..REFERENCES_MAX {
            let Some(object) = current.as_object_mut() else { break };
            if let Some(Value::String(reference)) = object.shift_remove("$ref") {
                let pointer = reference.strip_prefix('#').unwrap_or(&reference);
                if let Some(target) = self.root.pointer(pointer) {
                    let mut whole = target.as_object().cloned().unwrap_or_default();
                    merge(&mut whole, &current);
                    current = Value::Object(whole);
                }
            } else if let Some(Value::Array(parts)) = object.shift_remove("allOf") {
                for part in parts {
                    merge(object, &self.resolve(&part));
                }
            } else {
                break;
            }
        }
        current
    }

    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Value {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let further = schema.get("additionalProperties").unwrap_or(&Value::Null);
        let mut object = Map::new();
        for (name, property) in properties {
            if depth < DEPTH_FULL || required.contains(&name.as_str()) {
                object.insert(name.clone(), self.value(property, depth + 1));
            }
        }
        for name in required {
            if !properties.contains_key(name) {
                object.insert(name.to_owned(), self.value(further, depth + 1));
            }
        }
        let least = bound(schema, "minProperties").unwrap_or_default();
        for number in 0..least {
            if object.len() as u64 >= least {
                break;
            }
            object
                .insert(format!("{}_{number}", self.draw.pick(words::NOUNS)), self.value(further, depth + 1));
        }
        Value::Object(object)
    }

    fn array(&mut self, schema: &Map<String, Value>, depth: usize) -> Value {
        let least = bound(schema, "minItems").unwrap_or_default();
        let most = bound(schema, "maxItems").unwrap_or(u64::MAX);
        let wanted = if depth < DEPTH_FULL { 1 + self.draw.below(3) } else { 0 };
        let count = wanted.max(least).min(most);
        let first = schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let items = schema.get("items").unwrap_or(&Value::Null);
        let count = if items == &Value::Bool(false) { count.min(first.len() as u64) } else { count };
        let unique = schema.get("uniqueItems") == Some(&Value::Bool(true));
        let mut array: Vec<Value> = Vec::new();
        // Several draws for each place, because a small enum repeats itself.
        for _ in 0..count.saturating_mul(16) {
            if array.len() as u64 >= count {
                break;
            }
            let value = self.value(first.get(array.len()).unwrap_or(items), depth + 1);
            if !unique || !array.contains(&value) {
                array.push(value);
            }
        }
        Value::Array(array)
    }

    fn string(&mut self, schema: &Map<String, Value>) -> Value {
        let least = usize::try_from(bound(schema, "minLength").unwrap_or_default()).unwrap_or_default();
        let most =
            bound(schema, "maxLength").and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        if let Some(text) =
            schema.get("format").and_then(Value::as_str).and_then(|format| self.formatted(format))
        {
            return Value::String(text);
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && let Some(text) = pattern::text_for(pattern, self.draw, least)
        {
            return Value::String(text);
        }
        let mut text = words::phrase(self.draw);
        while text.len() < least {
            text.push(' ');
            text.push_str(self.draw.pick(words::NOUNS));
        }
        // The words are ASCII, so bytes are characters.
        text.truncate(most);
        let trimmed = text.trim_end().len().max(least);
        text.truncate(trimmed);
        Value::String(text)
    }

    fn formatted(&mut self, format: &str) -> Option<String> {
        let (month, day) = (1 + self.draw.below(12), 1 + self.draw.below(28));
        let (hour, minute) = (self.draw.below(24), self.draw.below(60));
        let bits = self.draw.next();
        let word = self.draw.pick(words::NOUNS);
        Some(match format {
            "date" => format!("2026-{month:02}-{day:02}"),
            "time" => format!("{hour:02}:{minute:02}:00Z"),
            "date-time" => format!("2026-{month:02}-{day:02}T{hour:02}:{minute:02}:00Z"),
            "email" => format!("{word}{day}@example.com"),
            "hostname" => format!("{word}.example.com"),
            "uri" | "url" => format!("https://example.com/{word}"),
            "ipv4" => format!("192.0.2.{day}"),
            "uuid" => format!(
                "{:08x}-{month:04x}-4{day:03x}-8{hour:03x}-{:012x}",
                bits >> 32,
                bits & 0xffff_ffff_ffff
            ),
            _ => return None,
        })
    }

    fn number(&mut self, schema: &Map<String, Value>, whole: bool) -> Value {
        let get = |key: &str| schema.get(key).and_then(Value::as_f64);
        let step = get("multipleOf").filter(|step| *step > 0.0).unwrap_or(if whole { 1.0 } else { 0.25 });
        let above = get("minimum").map(|least| (least / step).ceil());
        let strictly_above = get("exclusiveMinimum").map(|least| (least / step).floor() + 1.0);
        let below = get("maximum").map(|most| (most / step).floor());
        let strictly_below = get("exclusiveMaximum").map(|most| (most / step).ceil() - 1.0);
        let least = [above, strictly_above].into_iter().flatten().reduce(f64::max);
        let most = [below, strictly_below].into_iter().flatten().reduce(f64::min);
        let (least, most) = match (least, most) {
            (Some(least), Some(most)) => (least, most),
            (Some(least), None) => (least, least + 100.0),
            (None, Some(most)) => (most.min(0.0).min(most - 100.0), most),
            (None, None) => (0.0, 100.0),
        };
        if least > most {
            // No step lies between the bounds: the middle of a narrow range.
            let (low, high) = (get("minimum").unwrap_or(most * step), get("maximum").unwrap_or(least * step));
            return Number::from_f64(f64::midpoint(low, high)).map_or(Value::Null, Value::Number);
        }
        let steps = self.draw.below(((most - least).min(1e15) as u64).saturating_add(1)) as f64;
        let value = (least + steps) * step;
        if whole || (value.fract() == 0.0 && value.abs() < 1e15) {
            return Value::from(value as i64);
        }
        Number::from_f64(value).map_or(Value::Null, Value::Number)
    }
}

enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    Null,
}

/// The type that is named, or that the other words of the schema speak of.
fn kind(schema: &Map<String, Value>, depth: usize) -> Kind {
    let named = match schema.get("type") {
        Some(Value::String(name)) => Some(name.as_str()),
        // The end of a recursion is often `["object", "null"]`.
        Some(Value::Array(names)) if depth >= DEPTH_FULL && names.iter().any(|name| name == "null") => {
            Some("null")
        }
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).find(|name| *name != "null").or(Some("null"))
        }
        _ => None,
    };
    // Gemini writes types in capitals.
    match named.map(str::to_ascii_lowercase).as_deref() {
        Some("object") => Kind::Object,
        Some("array") => Kind::Array,
        Some("integer") => Kind::Integer,
        Some("number") => Kind::Number,
        Some("boolean") => Kind::Boolean,
        Some("null") => Kind::Null,
        Some(_) => Kind::String,
        None => {
            let has = |keys: &[&str]| keys.iter().any(|key| schema.contains_key(*key));
            if has(&["properties", "required", "additionalProperties", "minProperties"]) {
                Kind::Object
            } else if has(&["items", "prefixItems", "minItems", "maxItems"]) {
                Kind::Array
            } else if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
                Kind::Number
            } else {
                Kind::String
            }
        }
    }
}

fn bound(schema: &Map<String, Value>, key: &str) -> Option<u64> {
    schema.get(key).and_then(Value::as_f64).map(|bound| (bound.max(0.0) as u64).min(LENGTH_MAX))
}

/// Adds another schema's words. Properties and required names are joined, the rest is replaced.
fn merge(schema: &mut Map<String, Value>, other: &Value) {
    for (key, value) in other.as_object().into_iter().flatten() {
        match (schema.get_mut(key), value) {
            (Some(Value::Object(own)), Value::Object(others)) if key == "properties" => {
                own.extend(others.clone());
            }
            (Some(Value::Array(own)), Value::Array(others)) if key == "required" => {
                own.extend(others.clone());
            }
            _ => {
                schema.insert(key.clone(), value.clone());
            }
        }
    }
}
