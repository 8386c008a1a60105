// Live numbers. The server sends texts by their names: those of elements with data-live each second,
// and what changes in the drawings (data-drawn, data-path) every ten seconds.
'use strict';

const elements = (attribute) => document.querySelectorAll(`[data-${attribute}]`);
let stream = null;
let paused = false;

function setTexts(attribute, texts) {
	for (const element of elements(attribute)) {
		const text = texts[element.dataset[attribute]];
		if (text !== undefined && element.textContent !== text) element.textContent = text;
	}
}

function numbers(event) {
	const texts = JSON.parse(event.data);
	const checked = document.querySelector('[data-live=checked]');
	if (checked && checked.textContent !== texts.checked && !location.search) location.reload(); // there is a new result
	setTexts('live', texts);
}

function drawings(event) {
	const parts = JSON.parse(event.data);
	setTexts('drawn', parts);
	for (const line of elements('path')) {
		if (parts[line.dataset.path] !== undefined) line.setAttribute('d', parts[line.dataset.path]);
	}
}

function lost(isLost) {
	document.getElementById('lost').hidden = !isLost;
}

// follow opens or closes the stream. A hidden tab has none: browsers have six connections to a host.
function follow() {
	const wanted = !paused && !document.hidden;
	if (wanted && !stream) {
		stream = new EventSource('/live');
		stream.addEventListener('numbers', numbers);
		stream.addEventListener('drawings', drawings);
		stream.addEventListener('open', () => lost(false));
		stream.addEventListener('error', () => lost(true));
	} else if (!wanted && stream) {
		stream.close();
		stream = null;
	}
}

if (elements('live').length > 0) {
	follow();
	document.addEventListener('visibilitychange', follow);
	const pause = document.getElementById('pause');
	if (pause) {
		pause.hidden = false;
		pause.addEventListener('click', () => {
			paused = !paused;
			pause.textContent = paused ? 'Go on' : 'Pause';
			follow();
		});
	}
}
