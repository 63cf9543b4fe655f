//! As strict as the services: refuses unknown fields, a conversation without a turn, and JSON mode if the messages do not mention JSON.
//! A simulator that accepts everything would hide what a provider refuses. The error messages are those of the services.

use serde_json::Value;

use crate::sim_core::{SimCore, bad_request};
use longhaul_llm::error::Error;
use longhaul_llm::types::Dialect;

/// Names of an object's fields, and the objects or lists of objects behind some of them.
struct Shape {
    fields: &'static str,
    inner: &'static [(&'static str, Shape)],
}

const fn shape(fields: &'static str) -> Shape {
    Shape { fields, inner: &[] }
}

const fn nest(fields: &'static str, inner: &'static [(&'static str, Shape)]) -> Shape {
    Shape { fields, inner }
}

const OPENAI: &[(&str, Shape)] = &[
    (
        "messages",
        nest(
            "role content name tool_calls tool_call_id refusal audio function_call",
            &[
                (
                    "content",
                    nest(
                        "type text image_url input_audio file refusal prompt_cache_breakpoint",
                        &[
                            ("image_url", shape("url detail")),
                            ("input_audio", shape("data format")),
                            ("file", shape("file_data file_id filename")),
                        ],
                    ),
                ),
                ("tool_calls", nest("id type function custom", &[("function", shape("name arguments"))])),
            ],
        ),
    ),
    ("tools", nest("type function custom", &[("function", shape("name description parameters strict"))])),
    (
        "response_format",
        nest("type json_schema", &[("json_schema", shape("name description schema strict"))]),
    ),
    ("tool_choice", shape("type function custom allowed_tools")),
    ("stream_options", shape("include_usage include_obfuscation")),
];

const ANTHROPIC: &[(&str, Shape)] = &[
    ("messages", nest("role content", &[("content", BLOCK)])),
    ("system", shape("type text cache_control citations")),
    ("output_config", nest("effort format", &[("format", shape("type schema"))])),
    ("tool_choice", shape("type name disable_parallel_tool_use")),
    ("metadata", shape("user_id")),
];

/// All fields that one kind of block or another has.
const BLOCK: Shape = shape(
    "type text cache_control citations source transformations title context id name input caller tool_use_id content \
     is_error toolset_name thinking signature data file_id",
);

const GEMINI: &[(&str, Shape)] = &[
    ("contents", nest("role parts", &[("parts", PART)])),
    ("systemInstruction", nest("role parts", &[("parts", PART)])),
    (
        "generationConfig",
        shape(
            "audioTimestamp candidateCount enableAffectiveDialog frequencyPenalty logprobs maxOutputTokens mediaResolution \
             presencePenalty responseJsonSchema responseLogprobs responseMimeType responseModalities responseSchema \
             routingConfig seed speechConfig stopSequences temperature thinkingConfig topK topP",
        ),
    ),
    (
        "tools",
        nest(
            "codeExecution computerUse fileSearch functionDeclarations googleMaps googleSearch googleSearchRetrieval \
             mcpServers retrieval urlContext",
            &[(
                "functionDeclarations",
                shape(
                    "behavior description name parameters parametersJsonSchema response responseJsonSchema",
                ),
            )],
        ),
    ),
    (
        "toolConfig",
        nest(
            "functionCallingConfig retrievalConfig",
            &[("functionCallingConfig", shape("mode allowedFunctionNames"))],
        ),
    ),
];

const PART: Shape = nest(
    "codeExecutionResult executableCode fileData functionCall functionResponse inlineData mediaResolution partMetadata text \
     thought thoughtSignature videoMetadata",
    &[
        ("inlineData", shape("mimeType data displayName")),
        ("fileData", shape("mimeType fileUri displayName")),
        ("functionCall", shape("id name args")),
        ("functionResponse", shape("id name response parts scheduling willContinue")),
    ],
);

/// Refuses a body that the service would refuse. Local engines pass over what they do not know.
pub(super) fn check(core: &SimCore, dialect: Dialect, body: &Value) -> Result<(), Error> {
    if core.options().slots.is_some() {
        return Ok(());
    }
    let Value::Object(fields) = body else { return Ok(()) };
    if let Some(name) = fields.keys().find(|name| !dialect.knows(name)) {
        return Err(unknown(dialect, "", name));
    }
    let (inner, turns) = match dialect {
        Dialect::OpenAi => (OPENAI, "messages"),
        Dialect::Anthropic => (ANTHROPIC, "messages"),
        Dialect::Gemini => (GEMINI, "contents"),
    };
    for (name, shape) in inner {
        walk(dialect, shape, name, &body[*name])?;
    }
    if body[turns].as_array().is_some_and(Vec::is_empty) {
        return Err(bad_request(match dialect {
            Dialect::OpenAi => {
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
            }
            Dialect::Anthropic => "messages: at least one message is required",
            Dialect::Gemini => "* GenerateContentRequest.contents: contents is not specified",
        }));
    }
    let wants_object = dialect == Dialect::OpenAi && body["response_format"]["type"] == "json_object";
    if wants_object && !body[turns].to_string().to_lowercase().contains("json") {
        return Err(bad_request(
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
        ));
    }
    Ok(())
}

fn walk(dialect: Dialect, shape: &Shape, at: &str, value: &Value) -> Result<(), Error> {
    match value {
        Value::Array(items) => {
            let place = |index: usize| match dialect {
                Dialect::Anthropic => format!("{at}.{index}"),
                Dialect::OpenAi | Dialect::Gemini => format!("{at}[{index}]"),
            };
            items.iter().enumerate().try_for_each(|(index, item)| walk(dialect, shape, &place(index), item))
        }
        Value::Object(fields) => {
            if let Some(name) =
                fields.keys().find(|name| !shape.fields.split(' ').any(|known| known == *name))
            {
                return Err(unknown(dialect, at, name));
            }
            let mut inner = shape.inner.iter();
            inner.try_for_each(|(name, shape)| walk(dialect, shape, &format!("{at}.{name}"), &value[*name]))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn unknown(dialect: Dialect, at: &str, name: &str) -> Error {
    let path = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    bad_request(match dialect {
        Dialect::OpenAi => format!("Unknown parameter: '{path}'."),
        Dialect::Anthropic => format!("{path}: Extra inputs are not permitted"),
        Dialect::Gemini if at.is_empty() => {
            format!("Invalid JSON payload received. Unknown name \"{name}\": Cannot find field.")
        }
        Dialect::Gemini => {
            format!("Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field.")
        }
    })
}
