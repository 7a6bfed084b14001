// The plot of effects and absorbed duplicates over time, as SVG without a library: one column per slice, duplicates on top.

const namespace = 'http://www.w3.org/2000/svg'

function shape(tag, attributes, text) {
  const element = document.createElementNS(namespace, tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  if (text !== undefined) element.textContent = text
  return element
}

export function drawPlot(svg, words, slices) {
  const width = svg.clientWidth || 600
  const height = svg.clientHeight || 144
  const floor = height - 18
  const most = Math.max(4, ...slices.map(({ run, absorbed }) => run + absorbed))
  const scale = (floor - 14) / most
  const step = width / slices.length
  const columns = slices.flatMap(({ run, absorbed }, index) => {
    const at = { x: index * step, width: Math.max(1, step - 1.5), rx: Math.min(1.5, step / 3) }
    const bottom = floor - run * scale
    return [
      ...(run ? [shape('rect', { ...at, class: 'run', y: bottom, height: run * scale })] : []),
      ...(absorbed
        ? [shape('rect', { ...at, class: 'absorbed', y: bottom - absorbed * scale, height: absorbed * scale })]
        : []),
    ]
  })
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`)
  svg.replaceChildren(
    shape('line', { x1: 0, x2: width, y1: floor + 0.5, y2: floor + 0.5 }),
    ...columns,
    shape('text', { x: 0, y: 10 }, `${most} in 5 s`),
    shape('text', { x: 0, y: height - 4 }, '10 min ago'),
    shape('text', { x: width, y: height - 4, 'text-anchor': 'end' }, 'now'),
  )
  const sum = (name) => slices.reduce((total, slice) => total + slice[name], 0)
  const said = `${sum('run')} effects run and ${sum('absorbed')} duplicates absorbed in the last ten minutes.`
  if (words.textContent !== said) words.textContent = said
}
