'use strict';
{
  // A table is sorted by the column whose heading is clicked: numbers as numbers, missing ones always last.
  const keyOf = (row, place) => {
    const text = row.cells[place] ? row.cells[place].textContent.trim() : '';
    const value = Number(text.replaceAll(',', '').replace(/%$/, ''));
    return {text, value: text === '' || Number.isNaN(value) ? null : value};
  };
  for (const button of document.querySelectorAll('.sortable thead button')) {
    button.addEventListener('click', () => {
      const head = button.closest('th'), body = head.closest('table').tBodies[0], place = head.cellIndex;
      const rows = [...body.rows].map(row => ({row, ...keyOf(row, place)}));
      const numbers = rows.some(({value}) => value !== null) && head.classList.contains('n');
      const down = head.getAttribute('aria-sort') === 'ascending';
      rows.sort((a, b) => {
        if (!numbers) return (down ? -1 : 1) * a.text.localeCompare(b.text, undefined, {numeric: true});
        if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
        return (down ? -1 : 1) * (a.value - b.value);
      });
      for (const other of head.parentNode.cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      body.append(...rows.map(({row}) => row));
    });
  }

  // The cell of the matrix under the pointer, in words.
  const matrix = document.getElementById('matrix'), readout = document.getElementById('readout');
  readout.textContent = 'Point at a cell for its numbers.';
  const tell = event => {
    const cell = event.target.closest('tbody td');
    if (!cell) return;
    const row = cell.parentNode, total = Number(row.dataset.total);
    const count = Number(cell.dataset.n || cell.textContent.trim() || 0);
    const share = total ? ` (${(100 * count / total).toFixed(1)}%)` : '';
    const prediction = matrix.tHead.rows[0].cells[cell.cellIndex].textContent;
    readout.textContent = `${row.cells[0].textContent}, predicted as ${prediction}: ` +
      `${count.toLocaleString('en')} of ${total.toLocaleString('en')} ${matrix.dataset.unit}${share}`;
  };
  matrix.addEventListener('mouseover', tell);
  matrix.addEventListener('click', tell);

  for (const figure of document.querySelectorAll('figure')) {
    const toggle = () => figure.classList.toggle('large');
    figure.addEventListener('click', toggle);
    figure.addEventListener('keydown', event => { if (event.key === 'Enter') toggle(); });
  }
}
