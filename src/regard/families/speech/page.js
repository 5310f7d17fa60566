// The Sound tab: a recording in; what the model hears, and what it listened to. The view is spectrogram.js.
//
// Its parts, for tests and scripts: #sound-file -drop -model -error, #sound-examples button, #sound-answer p, #sound-
// view (data-state: empty | busy | done | error) with [data-part]: said button, readout, canvas, sound (the audio
// element), layer, head

import { registerAnswer } from "../../answers.js";
import { make } from "../../dom.js";
import { FileTab } from "../../inspect.js";
import { bytesOf } from "../../look/weights.js";
import { registerTab } from "../../tabs.js";

const markup = `
  <p class="empty" id="sound-none" hidden>No model here transcribes. Start the server with <code>-m FOLDER</code> of one, such as a Conformer or Whisper.</p>
  <div id="sound-content">
    <div class="card file-form">
      <div>
        <label class="drop" id="sound-drop">
          <input type="file" id="sound-file" accept="audio/*" aria-describedby="sound-error">
          <span class="drop-title">Drop a recording here, or <u>choose one</u></span>
          <span class="hint">WAV, FLAC, OGG, MP3 or AIFF. It goes to this server and nowhere else.</span>
        </label>
        <p class="hint samples-name" id="sound-examples-name">Or try one of these</p>
        <div class="row sample-sounds" id="sound-examples" role="group" aria-labelledby="sound-examples-name"></div>
      </div>
      <div>
        <label class="field">Model<select id="sound-model"></select></label>
        <div id="sound-answer"></div>
        <p class="notice bad" id="sound-error" role="alert" hidden></p>
      </div>
    </div>
    <div id="sound-view" data-state="empty" hidden></div>
  </div>`;

const heard = ({ text, words, seconds }) => [
  make("h2", { className: "answer-name", textContent: "The model hears" }),
  make("p", { className: "caption", textContent: text || "nothing" }),
  make("p", { className: "hint", textContent: `${seconds.toFixed(1)} s${words.length ? `; ${words.length} words with their times: play it below` : ""}` }),
];

registerAnswer("transcribe", heard);
registerTab("sound", { title: "Sound", reads: "audio", markup, refresh: () => sounds.open() });
const sounds = new FileTab("sound", "audio", ({ caption, data }, number) => ({
  file: new File([bytesOf(data)], `example ${number + 1}.wav`, { type: "audio/wav" }), content: caption,
}));
