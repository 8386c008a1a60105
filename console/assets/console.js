// Live numbers. The server sends texts by their names: those of elements with data-live each second,
// and what changes in the drawings (data-drawn, data-path) every ten seconds.
'use strict';

const idle = 'no check runs';
const elements = (attribute) => document.querySelectorAll(`[data-${attribute}]`);
let stream = null;

function setTexts(attribute, texts) {
	for (const element of elements(attribute)) {
		const text = texts[element.dataset[attribute]];
		if (text !== undefined && element.textContent !== text) element.textContent = text;
	}
}

function numbers(event) {
	const texts = JSON.parse(event.data);
	const check = document.querySelector('[data-live=check]');
	const ended = check && check.textContent !== idle && texts.check === idle;
	setTexts('live', texts);
	if (ended) location.reload(); // the result is there
}

function drawings(event) {
	const parts = JSON.parse(event.data);
	setTexts('drawn', parts);
	for (const line of elements('path')) {
		if (parts[line.dataset.path] !== undefined) line.setAttribute('d', parts[line.dataset.path]);
	}
}

function watch() {
	stream = new EventSource('/live');
	stream.addEventListener('numbers', numbers);
	stream.addEventListener('drawings', drawings);
}

if (elements('live').length > 0) {
	watch();
	const pause = document.getElementById('pause');
	if (pause) {
		pause.hidden = false;
		pause.addEventListener('click', () => {
			pause.textContent = stream ? 'Go on' : 'Pause';
			if (stream) {
				stream.close();
				stream = null;
			} else {
				watch();
			}
		});
	}
}
