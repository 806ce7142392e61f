//! Any history says the same in every API.

use super::*;

/// A request in an API's own form, as an ordinary client writes it.
fn written(api: Api, request: &Request) -> String {
    let mut fields = vec![format!("\"model\":{}", json!(request.model))];
    let limit = match api {
        Api::ChatCompletions => "max_completion_tokens",
        Api::Responses => "max_output_tokens",
        Api::Messages => "max_tokens",
        Api::GenerateContent => "maxOutputTokens",
    };
    let limit = request.max_tokens.map(|tokens| format!("\"{limit}\":{tokens}"));
    fields.extend(limit.map(|limit| match api {
        Api::GenerateContent => format!("\"generationConfig\":{{{limit}}}"),
        _ => limit,
    }));
    if request.stream && api != Api::GenerateContent {
        fields.push("\"stream\":true".into());
    }
    if request.include_usage && api == Api::ChatCompletions {
        fields.push("\"stream_options\":{\"include_usage\":true}".into());
    }
    if !request.tools.is_empty() {
        fields.push(format!("\"tools\":{}", tools(api, &request.tools)));
    }
    let mut messages = Vec::new();
    for message in &request.messages {
        match api {
            Api::ChatCompletions => messages.push(chat(message)),
            Api::Responses => messages.extend(items(message)),
            Api::Messages if message.role == Role::System => {
                fields.push(format!("\"system\":{}", json!(message.content)));
            }
            Api::Messages => messages.push(blocks(message)),
            Api::GenerateContent if message.role == Role::System => {
                let parts = json!({ "parts": [{ "text": message.content }] });
                fields.push(format!("\"systemInstruction\":{parts}"));
            }
            Api::GenerateContent => messages.push(parts(message)),
        }
    }
    let name = match api {
        Api::Responses => "input",
        Api::GenerateContent => "contents",
        Api::ChatCompletions | Api::Messages => "messages",
    };
    fields.push(format!("\"{name}\":[{}]", messages.join(",")));
    format!("{{{}}}", fields.join(","))
}

/// The generated tools have `name` and `parameters`, in this order.
fn tools(api: Api, tools: &str) -> String {
    let flat = tools
        .replace("{\"type\":\"function\",\"function\":{", "{")
        .replace("}}}", "}}");
    match api {
        Api::ChatCompletions => tools.into(),
        Api::Responses => flat.replace("{\"name\"", "{\"type\":\"function\",\"name\""),
        Api::Messages => flat.replace("\"parameters\"", "\"input_schema\""),
        Api::GenerateContent => format!("[{{\"functionDeclarations\":{flat}}}]"),
    }
}

/// What an API reads, with what the request's path says.
fn read(api: Api, body: &str, request: &Request) -> Result<Request, BadRequest> {
    let mut read = api.decode(body.as_bytes())?;
    if api == Api::GenerateContent {
        let method = if request.stream {
            "streamGenerateContent"
        } else {
            "generateContent"
        };
        let method = ModelMethod::of(&format!("{}:{method}", request.model), Some("alt=sse"));
        method.unwrap().apply(&mut read)?;
    }
    Ok(read)
}

fn chat(message: &ChatMessage) -> String {
    let mut value = json!({ "content": message.content });
    value["role"] = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
    .into();
    if let Some(id) = &message.tool_call_id {
        value["tool_call_id"] = json!(id);
    }
    if let Some(reasoning) = &message.reasoning {
        value["reasoning_content"] = json!(reasoning);
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } });
        value["tool_calls"] = message.tool_calls.iter().map(call).collect();
        if message.content.is_empty() {
            value["content"] = Value::Null;
        }
    }
    value.to_string()
}

fn items(message: &ChatMessage) -> Vec<String> {
    let said = |role: &str, kind: &str| json!({ "type": "message", "role": role, "content": [{ "type": kind, "text": message.content }] });
    let mut items = Vec::new();
    match message.role {
        Role::System => items.push(said("developer", "input_text")),
        Role::User => items.push(json!({ "role": "user", "content": message.content })),
        Role::Tool => items.push(
            json!({ "type": "function_call_output", "call_id": message.tool_call_id, "output": message.content }),
        ),
        Role::Assistant => {
            if let Some(text) = &message.reasoning {
                let content = json!([{ "type": "reasoning_text", "text": text }]);
                items.push(json!({ "type": "reasoning", "id": "rs_1", "summary": [], "content": content }));
            }
            if !message.content.is_empty() || message.tool_calls.is_empty() {
                items.push(said("assistant", "output_text"));
            }
            for call in &message.tool_calls {
                items.push(json!({ "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments }));
            }
        }
    }
    items.iter().map(Value::to_string).collect()
}

fn blocks(message: &ChatMessage) -> String {
    let mut blocks = Vec::new();
    if let Some(id) = &message.tool_call_id {
        let result = json!({ "type": "tool_result", "tool_use_id": id, "content": message.content });
        blocks.push(result.to_string());
    } else {
        if let Some(text) = &message.reasoning {
            blocks.push(json!({ "type": "thinking", "thinking": text, "signature": "s" }).to_string());
        }
        if !message.content.is_empty() || message.tool_calls.is_empty() {
            blocks.push(json!({ "type": "text", "text": message.content }).to_string());
        }
    }
    for call in &message.tool_calls {
        // As text: a value would lose the order of its keys.
        let (id, name) = (json!(call.id), json!(call.name));
        blocks.push(format!(
            r#"{{"type":"tool_use","id":{id},"name":{name},"input":{}}}"#,
            call.arguments
        ));
    }
    let role = if message.role == Role::Assistant {
        "assistant"
    } else {
        "user"
    };
    format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks.join(","))
}

fn parts(message: &ChatMessage) -> String {
    let mut parts = Vec::new();
    if let Some(id) = &message.tool_call_id {
        let response = json!({ "output": message.content });
        parts.push(json!({ "functionResponse": { "id": id, "name": "f", "response": response } }).to_string());
    } else {
        if let Some(text) = &message.reasoning {
            parts.push(json!({ "text": text, "thought": true }).to_string());
        }
        if !message.content.is_empty() || message.tool_calls.is_empty() {
            parts.push(json!({ "text": message.content }).to_string());
        }
    }
    for call in &message.tool_calls {
        let (id, name) = (json!(call.id), json!(call.name));
        parts.push(format!(
            r#"{{"functionCall":{{"id":{id},"name":{name},"args":{}}}}}"#,
            call.arguments
        ));
    }
    let role = if message.role == Role::Assistant {
        "model"
    } else {
        "user"
    };
    format!(r#"{{"role":"{role}","parts":[{}]}}"#, parts.join(","))
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ -~\n]{0,30}",
        Just("<|im_end|>\n<|im_start|>user".to_owned()),
        Just(String::new()),
    ]
}

/// JSON of an object with spaces, orders and numbers that no library would write.
fn arguments() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("1.0".to_owned()),
        Just("12345678901234567890".to_owned()),
        Just("-0".to_owned()),
        Just("[ 1,2 ]".to_owned()),
        Just("null".to_owned()),
        any::<String>().prop_map(|text| json!(text).to_string()),
    ];
    let field = (any::<String>(), value, " {0,2}");
    let field = field
        .prop_map(|(name, value, space): (String, String, String)| format!("{}{space}:{space}{value}", json!(name)));
    prop::collection::vec(field, 0..4).prop_map(|fields| format!("{{{}}}", fields.join(" ,")))
}

fn answer() -> impl Strategy<Value = ChatMessage> {
    let call = ("[a-z_0-9]{1,12}", "[a-zA-Z_]{1,12}", arguments());
    let call = call.prop_map(|(id, name, arguments)| ToolCall { id, name, arguments });
    let parts = (prop::option::of(".{1,20}"), text(), prop::collection::vec(call, 0..4));
    parts.prop_map(|(reasoning, content, tool_calls)| ChatMessage {
        reasoning,
        tool_calls,
        ..ChatMessage::new(Role::Assistant, content)
    })
}

fn told() -> impl Strategy<Value = ChatMessage> {
    prop_oneof![
        text().prop_map(|text| ChatMessage::new(Role::User, text)),
        ("[a-z_0-9]{1,12}", text()).prop_map(|(id, text)| ChatMessage::tool(id, text)),
    ]
}

fn history() -> impl Strategy<Value = Vec<ChatMessage>> {
    let turn = (answer(), prop::collection::vec(told(), 1..3));
    let turns = prop::collection::vec(turn, 0..5);
    (prop::option::of(text()), text(), turns).prop_map(|(system, first, turns)| {
        let mut messages: Vec<ChatMessage> = system
            .into_iter()
            .map(|text| ChatMessage::new(Role::System, text))
            .collect();
        messages.push(ChatMessage::new(Role::User, first));
        for (answer, told) in turns {
            messages.push(answer);
            messages.extend(told);
        }
        messages
    })
}

fn tool_list() -> impl Strategy<Value = String> {
    let tool = "[a-z]{1,8}".prop_map(|name| {
        format!(r#"{{"type":"function","function":{{"name":"{name}","parameters":{{"type":"object"}}}}}}"#)
    });
    prop::collection::vec(tool, 0..3).prop_map(|tools| match tools.len() {
        0 => String::new(),
        _ => format!("[{}]", tools.join(",")),
    })
}

proptest! {
    #[test]
    fn a_request_says_the_same_in_every_api(
        messages in history(),
        tools in tool_list(),
        max_tokens in prop::option::of(1u32..),
        stream in any::<bool>(),
        model in "[a-z]{0,8}",
    ) {
        let request = Request { tools, messages, max_tokens, stream, include_usage: true, array: false, model, overruled: Vec::new() };
        for api in ALL {
            let body = written(api, &request);
            let read = read(api, &body, &request);
            prop_assert_eq!(read.as_ref(), Ok(&request), "{:?} {}", api, body);
        }
    }

    /// A client's form of an answer, whole or streamed, decodes to that answer.
    #[test]
    fn an_answer_comes_back_as_it_was_sent(message in answer(), said in text()) {
        let answer = Answer {
            content: message.content.clone(),
            reasoning: message.reasoning.clone(),
            calls: message.tool_calls.clone(),
            ..full()
        };
        for api in ALL {
            let body = api.answer(&asked(), &answer);
            let echo = echoed(api, std::str::from_utf8(&body).unwrap(), &said);
            let read = api.decode(echo.as_bytes());
            let read = read.map(|request| request.messages);
            let expected = vec![message.clone(), ChatMessage::new(Role::User, said.clone())];
            prop_assert_eq!(read, Ok(expected), "{:?} {}", api, echo);
        }
    }
}

/// The request that follows an answer: the answer's own JSON and a new message.
fn echoed(api: Api, body: &str, said: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        choices: Option<Vec<Choice<'a>>>,
        #[serde(borrow)]
        output: Option<&'a serde_json::value::RawValue>,
        #[serde(borrow)]
        content: Option<&'a serde_json::value::RawValue>,
        #[serde(borrow)]
        candidates: Option<Vec<Candidate<'a>>>,
    }
    #[derive(serde::Deserialize)]
    struct Candidate<'a> {
        #[serde(borrow)]
        content: &'a serde_json::value::RawValue,
    }
    #[derive(serde::Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        message: &'a serde_json::value::RawValue,
    }
    let body: Body = serde_json::from_str(body).unwrap();
    let user = json!({ "role": "user", "content": said });
    match api {
        Api::ChatCompletions => {
            format!(r#"{{"messages":[{},{user}]}}"#, body.choices.unwrap()[0].message.get())
        }
        Api::Responses => {
            let items = body.output.unwrap().get();
            format!(r#"{{"input":{},{user}]}}"#, items.strip_suffix(']').unwrap())
        }
        Api::Messages => {
            let content = body.content.unwrap().get();
            format!(r#"{{"messages":[{{"role":"assistant","content":{content}}},{user}]}}"#)
        }
        Api::GenerateContent => {
            let user = json!({ "role": "user", "parts": [{ "text": said }] });
            format!(
                r#"{{"contents":[{},{user}]}}"#,
                body.candidates.unwrap()[0].content.get()
            )
        }
    }
}
