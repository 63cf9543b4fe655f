//! `/v1` in the description: which calls of the SDKs there are. What they send and get is described by their makers, whose pages are
//! named instead of copied.

use serde_json::{Map, Value, json};

const OPENAI: &str = "https://platform.openai.com/docs/api-reference";
const ANTHROPIC: &str = "https://docs.claude.com/en/api";

/// Path, method, name of the operation, what it does, and who describes it.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

const CALLS: [Row; 33] = [
    ("/v1/files", "get", "openai_list_files", "Lists the caller's files.", OPENAI),
    ("/v1/files", "post", "openai_upload_file", "Uploads a file, as a form.", OPENAI),
    ("/v1/files/{id}", "get", "openai_show_file", "Shows a file.", OPENAI),
    ("/v1/files/{id}", "delete", "openai_delete_file", "Deletes a file.", OPENAI),
    ("/v1/files/{id}/content", "get", "openai_file_content", "Reads a file.", OPENAI),
    ("/v1/batches", "get", "openai_list_batches", "Lists the caller's batches.", OPENAI),
    ("/v1/batches", "post", "openai_create_batch", "Creates a batch for any model.", OPENAI),
    ("/v1/batches/{id}", "get", "openai_show_batch", "Shows a batch.", OPENAI),
    ("/v1/batches/{id}/cancel", "post", "openai_cancel_batch", "Cancels a batch.", OPENAI),
    ("/v1/chat/completions", "get", "openai_list_chats", "Lists stored completions: none is stored.", OPENAI),
    ("/v1/chat/completions", "post", "openai_chat", "Asks any model, whole or streamed.", OPENAI),
    (
        "/v1/chat/completions/{id}",
        "get",
        "openai_show_chat",
        "Shows a stored completion: none is stored.",
        OPENAI,
    ),
    (
        "/v1/chat/completions/{id}",
        "post",
        "openai_change_chat",
        "Changes a stored completion: none is stored.",
        OPENAI,
    ),
    (
        "/v1/chat/completions/{id}",
        "delete",
        "openai_delete_chat",
        "Deletes a stored completion: none is stored.",
        OPENAI,
    ),
    (
        "/v1/chat/completions/{id}/messages",
        "get",
        "openai_chat_messages",
        "Lists messages of a stored completion: none is stored.",
        OPENAI,
    ),
    ("/v1/completions", "post", "openai_completion", "Completes a text.", OPENAI),
    ("/v1/embeddings", "post", "openai_embed", "Embeds texts.", OPENAI),
    ("/v1/models", "get", "openai_list_models", "Lists models, in the format of the client's API.", OPENAI),
    (
        "/v1/models/{id}",
        "get",
        "openai_show_model",
        "Shows a model, in the format of the client's API.",
        OPENAI,
    ),
    ("/v1/models/{id}", "delete", "openai_delete_model", "Deletes a model: none can be.", OPENAI),
    ("/v1/responses", "post", "openai_respond", "Asks any model, whole or streamed.", OPENAI),
    (
        "/v1/responses/compact",
        "post",
        "openai_compact",
        "Compacts a conversation: not possible here.",
        OPENAI,
    ),
    ("/v1/responses/{id}", "get", "openai_show_response", "Shows a stored response: none is stored.", OPENAI),
    (
        "/v1/responses/{id}",
        "delete",
        "openai_delete_response",
        "Deletes a stored response: none is stored.",
        OPENAI,
    ),
    (
        "/v1/responses/{id}/cancel",
        "post",
        "openai_cancel_response",
        "Cancels a stored response: none is stored.",
        OPENAI,
    ),
    ("/v1/messages", "post", "anthropic_message", "Asks any model, whole or streamed.", ANTHROPIC),
    (
        "/v1/messages/count_tokens",
        "post",
        "anthropic_count_tokens",
        "Estimates the tokens of a message.",
        ANTHROPIC,
    ),
    ("/v1/messages/batches", "get", "anthropic_list_batches", "Lists the caller's batches.", ANTHROPIC),
    ("/v1/messages/batches", "post", "anthropic_create_batch", "Creates a batch for any model.", ANTHROPIC),
    ("/v1/messages/batches/{id}", "get", "anthropic_show_batch", "Shows a batch.", ANTHROPIC),
    (
        "/v1/messages/batches/{id}",
        "delete",
        "anthropic_delete_batch",
        "Deletes a batch that has ended.",
        ANTHROPIC,
    ),
    ("/v1/messages/batches/{id}/cancel", "post", "anthropic_cancel_batch", "Cancels a batch.", ANTHROPIC),
    (
        "/v1/messages/batches/{id}/results",
        "get",
        "anthropic_batch_results",
        "Reads the results of a batch, one per line.",
        ANTHROPIC,
    ),
];

/// Adds the calls to the description.
pub(super) fn add(api: &mut Value) {
    let Some(paths) = api.get_mut("paths").and_then(Value::as_object_mut) else { return };
    for (path, method, name, summary, maker) in CALLS {
        let tag = if maker == OPENAI { "openai" } else { "anthropic" };
        let mut operation = json!({
            "tags": [tag],
            "summary": summary,
            "description": format!("As described at {maker}."),
            "operationId": name,
            "responses": {
                "200": { "description": "As described there" },
                "default": { "description": "Refused, in the error format of the client's API" },
            },
        });
        if path.contains("{id}") {
            operation["parameters"] =
                json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        if method == "post" && !path.contains("{id}") {
            let form = if path == "/v1/files" { "multipart/form-data" } else { "application/json" };
            let mut content = Map::new();
            content.insert(form.to_owned(), json!({ "schema": { "type": "object" } }));
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation;
    }
    if let Some(tags) = api.get_mut("tags").and_then(Value::as_array_mut) {
        tags.push(json!({ "name": "openai", "description": "What unmodified SDKs of OpenAI speak, for any model." }));
        tags.push(json!({ "name": "anthropic", "description": "What unmodified SDKs of Anthropic speak, for any model." }));
    }
}
