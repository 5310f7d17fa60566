// How the page shows the classes of an image.

import { labels, registerAnswer } from "../../answers.js";

registerAnswer("see", labels("The model takes it for"));
registerAnswer("segment", labels("The image consists of"));
