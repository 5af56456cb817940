"""Pascal VOC's XML, a file a picture."""

from pathlib import Path, PurePosixPath
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from .found import Found, Object, Picture, Place, folder_part, numbers, tally
from .tree import Tree, share_out

_LINE = ' line'  # an attribute that no XML has
CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


def read_voc(tree: Tree) -> Found | None:
    files = {}
    for name in tree.with_suffix('.xml'):
        try:
            root = read_xml(tree.root / name)
        except expat.ExpatError as error:
            tree.faults.add(Place(tree.root / name, error.lineno), f'is no whole XML: {expat.ErrorString(error.code)}')
            continue
        if root.tag == 'annotation':
            files[name] = root
    if not files:
        return None
    # VOC counts pixels from 1; tools that count from 0 sooner or later write one
    counts_from = min((_lowest(root) for root in files.values()), default=1.0) >= 1
    found = Found('Pascal VOC', tree.root, [], [])
    for name, root in files.items():
        picture = _picture(tree, name, root)
        if picture is not None:
            picture.objects = list(
                filter(None, (_object(tree, name, node, counts_from) for node in root.iter('object')))
            )
            found.pictures.append(picture)
    spare = sorted({*tree.pictures} - {picture.path for picture in found.pictures})
    spare = [name for name in spare if 'Segmentation' not in name]
    if spare:
        found.remarks.append(tally('pictures without an XML file', spare, 'not used'))
    share_out(tree, found, 'main')
    listed = tree.class_names()
    labels = {entry.label for picture in found.pictures for entry in picture.objects}
    found.classes = listed[1] if listed and labels <= set(listed[1]) else sorted(labels)
    return found


def read_xml(path: Path) -> Element:
    """With the line of each element."""
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def start(tag: str, attributes: dict[str, str]) -> None:
        builder.start(tag, {**attributes, _LINE: str(parser.CurrentLineNumber)})

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, builder.end, builder.data
    parser.Parse(path.read_bytes(), True)
    return builder.close()


def _lowest(root: Element) -> float:
    try:
        return min((float(node.text or '1') for tag in CORNERS for node in root.iter(tag)), default=1.0)
    except ValueError:
        return 1.0  # told of where the box is read


def _picture(tree: Tree, name: str, root: Element) -> Picture | None:
    """The picture beside the XML, or the one that it names."""
    place, told = Place(tree.root / name), (root.findtext('filename') or '').strip()
    names = (str(PurePosixPath(name).with_suffix(PurePosixPath(told).suffix)), told)
    wanted = next((choice for choice in names if PurePosixPath(choice).stem in tree.by_stem), told)
    path = tree.locate_for(place, (wanted,), name, told)
    if path is None:
        return None
    size = tree.size(path)
    node = root.find('size')
    if size is None:
        return None
    if node is not None:
        try:
            sides = [int(float(node.findtext(side) or 0)) for side in ('width', 'height')]
        except ValueError:
            tree.faults.add(_line(tree, name, node), 'width and height must be numbers')
            return None
        tree.check_size(path, (sides[0], sides[1]), _line(tree, name, node))
    return Picture(path, size, folder_part(path) or folder_part(name))


def _line(tree: Tree, name: str, node: Element) -> Place:
    return Place(tree.root / name, int(node.get(_LINE, 0)) or None)


def _object(tree: Tree, name: str, node: Element, counts_from: int) -> Object | None:
    label, box, place = (node.findtext('name') or '').strip(), node.find('bndbox'), _line(tree, name, node)
    if not label or box is None:
        tree.faults.add(place, f'an object needs a {"bndbox" if label else "name"}')
        return None
    try:
        left, top, right, bottom = numbers([(box.findtext(corner) or '').strip() for corner in CORNERS])
    except ValueError as error:
        tree.faults.add(_line(tree, name, box), f'its bndbox must be xmin, ymin, xmax, ymax: {error}')
        return None
    if right < left or bottom < top:
        tree.faults.add(_line(tree, name, box), f'its bndbox has xmax before xmin, or ymax before ymin: {label!r}')
        return None
    size = right - left + counts_from, bottom - top + counts_from
    crowd = (node.findtext('difficult') or '0').strip() == '1'
    return Object(label, (left - counts_from, top - counts_from, *size), None, crowd, place)
