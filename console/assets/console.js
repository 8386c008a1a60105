// Live numbers: the server sends the text of each element with data-live, by its name.
'use strict';

const shown = document.querySelectorAll('[data-live]');
if (shown.length > 0) {
	const stream = new EventSource('/live');
	stream.addEventListener('numbers', (event) => {
		const texts = JSON.parse(event.data);
		for (const element of shown) {
			const text = texts[element.dataset.live];
			if (text !== undefined && element.textContent !== text) element.textContent = text;
		}
	});
}
