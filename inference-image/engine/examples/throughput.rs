//! Measures tokens per second of a running engine, over HTTP: `throughput URL [CALLERS] [ROUNDS]`.
//!
//! The load is that of a GRPO rollout: groups of eight callers share a first prompt, and every further call of a caller
//! sends its whole conversation again, followed by the sampled tokens and an observation.

use grpo_engine_protocol::{CompletionRequest, CompletionResponse};
use std::error::Error;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const TURNS: u32 = 8;
const FIRST_PROMPT: u32 = 120;
const OBSERVATION: u32 = 24;
const SAMPLED: u32 = 24;
/// Ids that both the tests' and the demo's vocabulary have.
const IDS: u32 = 90;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: throughput URL [CALLERS] [ROUNDS]")?;
    let callers: u32 = arguments.next().map_or(Ok(48), |text| text.parse())?;
    let rounds: u32 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    for round in 0..rounds {
        let began = Instant::now();
        let calls = (0..callers).map(|caller| tokio::spawn(conversation(url.clone(), round, caller)));
        let (mut prompt, mut sampled) = (0, 0);
        for call in calls.collect::<Vec<_>>() {
            let (read, written) = call.await??;
            prompt += read;
            sampled += written;
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{callers} callers: {:.0} sampled tokens/s, {:.0} prompt tokens/s, {seconds:.2} s",
            sampled as f64 / seconds,
            prompt as f64 / seconds,
        );
    }
    Ok(())
}

async fn conversation(url: String, round: u32, caller: u32) -> Outcome<(u64, u64)> {
    let client = reqwest::Client::new();
    let mut ids: Vec<u32> = (0..FIRST_PROMPT)
        .map(|i| 3 + (i * 7 + caller / 8 * 31 + round * 13) % IDS)
        .collect();
    let (mut prompt, mut sampled) = (0, 0);
    for turn in 0..TURNS {
        let request = CompletionRequest {
            ignore_eos: true,
            ..CompletionRequest::of_tokens("policy", ids.clone(), SAMPLED, u64::from(caller * 100 + turn))
        };
        let answer = client
            .post(format!("{url}/v1/completions"))
            .json(&request)
            .send()
            .await?
            .error_for_status()?;
        let answer: CompletionResponse = answer.json().await?;
        prompt += answer.usage.prompt_tokens;
        sampled += answer.usage.completion_tokens;
        ids.extend(answer.choices.iter().flat_map(|row| &row.token_ids));
        ids.extend((0..OBSERVATION).map(|i| 3 + (i * 5 + turn * 17) % IDS));
    }
    Ok((prompt, sampled))
}
