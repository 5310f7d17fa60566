// Speaking instead of typing, where a model here transcribes: the browser records, the server hears.

import { Problem, upload, wordsOf } from "./api.js";
import { modelList, watchModels } from "./model_list.js";

const RATE = 16_000; // samples a second that are sent

const listener = () => modelList.models.find((model) => model.ability === "transcribe");

/** A button that records until it is pressed again; `take(text)` gets what was heard, `fail(words)` why nothing was. */
export function speakingButton(button, take, fail) {
  const words = button.textContent;
  let recorder = null;
  const label = (text, isOn) => { button.textContent = text; button.setAttribute("aria-pressed", isOn); };
  watchModels(() => { button.hidden = !listener() || !navigator.mediaDevices; });
  button.addEventListener("click", async () => {
    if (recorder) { recorder.stop(); return; }
    try {
      recorder = await record();
      label("Stop", true);
      const sound = await recorder.sound;
      label("Listening…", false);
      take(await heard(sound));
      fail("");
    } catch (error) {
      fail(wordsOf(error));
    }
    recorder = null;
    label(words, false);
  });
}

/** A recorder that has begun; its `sound` comes when it is stopped. */
async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true }).catch(() => {
    throw new Problem("The browser did not let this page listen. Allow it the microphone, and press again.");
  });
  const recorder = new MediaRecorder(stream), pieces = [];
  recorder.sound = new Promise((done) => {
    recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
    recorder.addEventListener("stop", () => {
      for (const track of stream.getTracks()) track.stop();
      done(new Blob(pieces));
    });
  });
  recorder.start();
  return recorder;
}

/** What a model hears in a recording. */
async function heard(sound) {
  const decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await sound.arrayBuffer()).catch(() => {
    throw new Problem("Nothing was recorded. Speak a little longer.");
  });
  const form = new FormData();
  form.append("file", new File([wav(decoded.getChannelData(0))], "spoken.wav", { type: "audio/wav" }));
  form.append("model", listener().id);
  return (await upload("/v1/audio/transcriptions", form)).text.trim();
}

/** Samples as a WAV file of 16 bits. */
function wav(samples) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, index) => bytes.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF"); bytes.setUint32(4, 36 + 2 * samples.length, true); text(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true); bytes.setUint16(20, 1, true); bytes.setUint16(22, 1, true);
  bytes.setUint32(24, RATE, true); bytes.setUint32(28, 2 * RATE, true); bytes.setUint16(32, 2, true); bytes.setUint16(34, 16, true);
  text(36, "data"); bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => bytes.setInt16(44 + 2 * index, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return bytes.buffer;
}
